"""Compares the check of a dataset with plain Python in alternating runs, in MB of file a second: `npm run bench --
validation [--mb 200] [--turns 5]`.

Structure: the process that reads an upload (parses and checks every row, finds duplicates), against `json.loads` of
every line. Tokens: `python -m trainer.cli.count` as the service calls it, with start and rendering, against the Rust
tokenizer called from Python on rendered texts, without its start.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
# The flags of server/storage/untrusted-files.ts.
FLAGS = ("--max-old-space-size=512", "--max-semi-space-size=32")
LOOP = """
import json, sys
for line in open(sys.argv[1], "rb"):
    row = json.loads(line)
    assert isinstance(row["messages"], list)
"""


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def tokenizer_alone(rows: Path) -> float:
    os.environ.update(TOKENIZERS_PARALLELISM="true", HF_HUB_OFFLINE="1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in rows.open()]
    started = time.perf_counter()
    sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--token-mb", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--tokenizer-alone", type=Path, help="print the seconds that the tokenizer alone takes for these rows, and end"
    )
    args = parser.parse_args()
    if args.tokenizer_alone:
        print(tokenizer_alone(args.tokenizer_alone))
        return
    from bench.training.rows import mixed_rows

    node = str(ROOT / "scripts/node")
    with tempfile.TemporaryDirectory() as name:
        some = [json.dumps(row) for row in mixed_rows(3000, 1)]

        def write(path: Path, megabytes: int) -> Path:
            with path.open("w") as file:
                number = 0
                while file.tell() < megabytes * 1e6:
                    # Rows are distinct, so the check stores as many hashes as there are rows.
                    file.write(
                        "".join(
                            line.replace("What does", f"{number}.{index}: what does", 1) + "\n"
                            for index, line in enumerate(some)
                        )
                    )
                    number += 1
            return path

        rows, fewer = write(Path(name) / "rows.jsonl", args.mb), write(Path(name) / "fewer.jsonl", args.token_mb)
        request = {"format": "jsonl", "source": str(rows), "canonical": None, "max_rows": 10**8, "max_bytes": 10**10}
        count = {"hf": str(MODEL), "rows": str(fewer), "max_length": 2048}
        ways = {
            "structure, Python's json loop": lambda: seconds([sys.executable, "-c", LOOP, str(rows)]),
            "structure, Tunery": lambda: seconds([node, *FLAGS, "server/datasets/reader/main.ts", json.dumps(request)]),
            "tokens, Rust tokenizer from Python": lambda: float(
                subprocess.run(
                    [sys.executable, "-m", "bench.validation", "--tokenizer-alone", str(fewer)],
                    cwd=ROOT,
                    check=True,
                    capture_output=True,
                ).stdout
            ),
            "tokens, Tunery": lambda: seconds([sys.executable, "-m", "trainer.cli.count", json.dumps(count)]),
        }
        found = {way: [] for way in ways}
        for turn in range(args.turns):
            for way, measure in ways.items():
                size = (rows if way.startswith("structure") else fewer).stat().st_size
                found[way].append(size / 1e6 / measure())
            print(
                f"turn {turn + 1}: " + ", ".join(f"{way} {values[-1]:.1f}" for way, values in found.items()), flush=True
            )
        for way, values in found.items():
            print(f"{way}: {statistics.median(values):.1f} MB/s")


if __name__ == "__main__":
    main()
