"""Converts a checkpoint that the service has downloaded into OUT/hf for the engine.

    python -m trainer.cli.prepare_download --repo REPO --converters DIR --id ID --out OUT --node NODE

Writes `model.gguf`, of a vision-language model also its projector, and, last, `model.json`: when NODE, the program of
Node, has shown that the engine computes what transformers does. Ends when the pipe on its standard input closes.
"""

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path

from trainer.cli.prepare_base import check, convert, describe, write_description
from trainer.runtime.errors import reason
from trainer.runtime.protocol import Protocol, run_program


def main(_protocol: Protocol) -> int:
    """Converts the checkpoint that the command line names. The last line on stderr says why that failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repo", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--converters", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--node", type=Path, required=True)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Answers have priority.
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        blind = convert(args.out, args.converters)
        source = f"https://huggingface.co/{args.repo}"
        described = describe(args.id, args.out, source, args.converters, blind)
        write_description(args.out, check(args.out, described, args.converters, args.node))
    except BaseException as problem:
        traceback.print_exc()
        # The service shows the last line.
        print(reason(problem), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run_program(main, explain=None)
