"""Prepares a dataset as a training does before it loads the model: `python -m bench.growth.prepare MODEL_DIR ROWS`.
Prints one JSON line: seconds without the start of the program, the memory that this took at most in MB, and tokens.
"""

import json
import sys
import time
from pathlib import Path

from trainer.runtime.process import importing

with importing():
    from transformers import AutoConfig, AutoTokenizer

    from trainer.data.dataset import prepare
    from trainer.data.rows import read_rows
    from trainer.data.sight import sight_of
from trainer.runtime.files import sha256_of
from trainer.runtime.protocol import SilentProtocol


def main() -> None:
    model, rows = map(Path, sys.argv[1:3])
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    tokenizer.parse_control_tokens = False
    tokenizer.sight = sight_of(AutoConfig.from_pretrained(model, local_files_only=True), model, tokenizer)
    before, started = memory_bytes("VmRSS"), time.perf_counter()
    prepared = prepare(read_rows(rows, sha256_of(rows)), tokenizer, 512, SilentProtocol())
    seconds = time.perf_counter() - started
    rows_mb = (memory_bytes("VmHWM") - before) / 1e6
    print(json.dumps({"seconds": seconds, "rows_mb": rows_mb, "tokens": prepared.tokens}))


def memory_bytes(field: str) -> int:
    """Memory of this process: resident now (VmRSS), or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
