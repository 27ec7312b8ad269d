"""Adds a base for `./tunery models add`: `python -m trainer.cli.add_base KIND …`, where KIND is `gguf` (`add_gguf`), or
one of `prepare_base`. Whatever fails is said in one sentence on stderr, and the status is EXIT_REPORTED.
"""

import json
import sys
from pathlib import Path

from trainer.cli import add_gguf, prepare_base
from trainer.runtime.errors import JobError, explain, without_paths
from trainer.runtime.protocol import exit_process

# Exit status of a failure whose reason is printed.
EXIT_REPORTED = 3


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
    return prepare_base.main()


def reason(problem: BaseException) -> str:
    """Why the base was not added, as one sentence for users."""
    if type(problem) in (RuntimeError, SystemExit, JobError):
        text = str(problem)
    elif (known := explain(problem) if isinstance(problem, Exception) else None) and known.code != "internal":
        full = known.code == "storage_full"
        text = "The disk is full, or cannot be written" if full else "The machine's memory is not enough for it"
    else:
        # Copying a folder raises a list of what failed.
        while isinstance(problem.args[0] if problem.args else None, list) and isinstance(problem, OSError):
            problem = OSError(problem.args[0][0][-1])
        lines = [line for line in str(problem).splitlines() if line.strip()]
        what = f": {without_paths(lines[0].strip())[:300]}" if lines else ""
        text = f"Its files cannot be read ({type(problem).__name__}{what})"
    return f"{text.strip().rstrip('.')}."


def main() -> None:
    """Adds the base that the command line describes, and ends the process."""
    try:
        add()
    except BaseException as problem:
        name = sys.argv[sys.argv.index("--id") + 1]
        print(f"{name} could not be added: {reason(problem)}", file=sys.stderr)
        exit_process(EXIT_REPORTED)
    exit_process(0)


if __name__ == "__main__":
    main()
