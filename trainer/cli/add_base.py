"""Adds a base for `./tunery models add`: `python -m trainer.cli.add_base KIND …`, where KIND is `gguf` (`add_gguf`), or
one of `prepare_base`. Whatever fails is said in one sentence on stderr, and the status is EXIT_REPORTED or
EXIT_LATER.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from trainer.cli import add_gguf, prepare_base
from trainer.runtime.errors import passes, reason
from trainer.runtime.process import importing, leave_out_quantized_layers
from trainer.runtime.protocol import exit_process

# Exit statuses of failures whose reason is printed: of the base, and of this machine, where another try may succeed.
EXIT_REPORTED, EXIT_LATER = 3, 4


def add() -> None:
    """Runs the program for the kind. Raises whatever it raises."""
    if sys.argv[1] == "gguf":
        del sys.argv[1]
        return add_gguf.main()
    named = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    source = Path(named["--source"]) if "--source" in named else Path(named["--out"]) / "hf"
    try:
        config = json.loads((source / "config.json").read_text())
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise RuntimeError("Its config.json is not a JSON object.")
    if not list(source.glob("*.safetensors")):
        raise SystemExit(
            "The checkpoint has no safetensors files; other formats can run code when they are read and are not taken."
        )
    leave_out_quantized_layers()
    with importing():
        import_module("trainer.run.base_check")
    return prepare_base.main()


def main() -> None:
    """Adds the base that the command line describes, and ends the process."""
    try:
        add()
    except BaseException as problem:
        name = sys.argv[sys.argv.index("--id") + 1]
        print(f"{name} could not be added: {reason(problem)}", file=sys.stderr)
        exit_process(EXIT_LATER if passes(problem) else EXIT_REPORTED)
    exit_process(0)


if __name__ == "__main__":
    main()
