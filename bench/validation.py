"""Compares the check of a dataset with its peers, in MB of file a second: `npm run bench -- validation [--mb 200]
[--token-mb 40] [--whole-mb 1000] [--turns 3]`. Ends with 1 if a target is missed.

Structure: the process that reads an upload (parses and checks every row, finds duplicates), against `json.loads` of
every line. Tokens: `python -m trainer.cli.count` as the service calls it, with start and rendering, against one thread
of the Rust tokenizer called from Python on rendered texts, without its start. In alternating runs.

Whole: structure and tokens of one large file, one after the other, and the memory of the processes.

The rows are pieces of the source files of the installed packages, a different cut each time that the files end.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
NODE = str(ROOT / "scripts/node")
# The flags of server/platform/storage/untrusted-files.ts.
FLAGS = ("--max-old-space-size=512", "--max-semi-space-size=32")
LOOP = """
import json, sys
for line in open(sys.argv[1], "rb"):
    row = json.loads(line)
    assert isinstance(row["messages"], list)
"""
# The start is a large part for a file of some MB; "whole" is beside the same tokenizer.
TARGETS = {"structure": 1.0, "tokens": 1.0, "whole": 3.0}
# Growth from the first fifth of a large file to its end. The search for duplicates keeps 16 bytes a row or some more.
MAX_GROWTH_MB = 150


def source_rows() -> Iterator[dict]:
    """Pieces of the source files, from 40 to 6,000 characters, half of them below 600. Without end."""
    folders = [ROOT / ".local/python/lib", ROOT / "node_modules"]
    kinds = {".py", ".md", ".ts", ".h", ".txt", ".rst"}
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in kinds and path.is_file())
    turn = 0
    while True:
        chosen = random.Random(turn)
        chosen.shuffle(files)
        for path in files:
            text, at = path.read_text(errors="ignore"), 0
            while at < len(text):
                piece = text[at : at + round(min(6000, max(80, chosen.lognormvariate(6.4, 0.9))))]
                at += len(piece)
                if len(piece) >= 40 and piece.strip():
                    question = f"{turn}: What has {path.relative_to(ROOT)} before {at}?"
                    yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": piece}]}
        turn += 1


def write_rows(files: dict[Path, int]) -> None:
    """Writes rows to each file, as many MB as it says; the first rows of all are the same."""
    opened = [(path.open("w"), megabytes * 1e6) for path, megabytes in files.items()]
    for row in source_rows():
        line, full = json.dumps(row) + "\n", True
        for file, size in opened:
            if file.tell() < size:
                full = False
                file.write(line)
        if full:
            break
    for file, _ in opened:
        file.close()


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def cpu_seconds() -> float:
    """Processor time of the processes that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def memory_mb(pid: int) -> float:
    """Resident memory of a process and of those that its main thread started."""
    try:
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, IndexError):
        return 0
    return own + sum(map(memory_mb, children))


def seconds_and_memory(command: list[str]) -> tuple[float, float, float, float]:
    """Seconds, seconds of processor time, and the peaks of memory in the first fifth of the time and in all of it, in
    MB.
    """
    started, cpu_before, samples = time.perf_counter(), cpu_seconds(), []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            samples.append(memory_mb(process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command[:4]} ended with {process.returncode}")
    took, cpu = time.perf_counter() - started, cpu_seconds() - cpu_before
    return took, cpu, max(samples[: max(1, len(samples) // 5)]), max(samples)


def tokenizer_alone(rows: Path) -> float:
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in rows.open()]
    batches = [texts[start : start + 512] for start in range(0, len(texts), 512)]
    started, cpu_before = time.perf_counter(), time.process_time()
    for batch in batches:
        tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu_before
    print(f"the tokenizer alone: {cpu:.1f} s of processor time", file=sys.stderr)
    return took


def structure_of(rows: Path) -> list[str]:
    request = {"format": "jsonl", "source": str(rows), "canonical": None, "max_rows": 10**8, "max_bytes": 10**10}
    return [NODE, *FLAGS, "server/features/datasets/reader/main.ts", json.dumps(request)]


def tokens_of(rows: Path) -> list[str]:
    # As server/features/datasets/tokens.ts does it.
    request = {"hf": str(MODEL), "rows": str(rows), "max_length": 2048, "objective": "sft"}
    workers = min(4, len(os.sched_getaffinity(0)))
    return [sys.executable, "-m", "trainer.cli.count", json.dumps({**request, "workers": workers})]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--token-mb", type=int, default=40)
    parser.add_argument("--whole-mb", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--tokenizer-alone", type=Path, help="print the seconds that the tokenizer alone takes for these rows, and end"
    )
    args = parser.parse_args()
    if args.tokenizer_alone:
        print(tokenizer_alone(args.tokenizer_alone))
        return
    with tempfile.TemporaryDirectory() as name:
        rows, fewer, many = (Path(name) / f"{each}.jsonl" for each in ("rows", "fewer", "many"))
        write_rows({rows: args.mb, fewer: args.token_mb, many: args.whole_mb})
        alone = [sys.executable, "-m", "bench.validation", "--tokenizer-alone", str(fewer)]
        ways = {
            "structure, Python's json loop": (rows, lambda: seconds([sys.executable, "-c", LOOP, str(rows)])),
            "structure, Tunery": (rows, lambda: seconds(structure_of(rows))),
            "tokens, one thread of the Rust tokenizer": (
                fewer,
                lambda: float(subprocess.run(alone, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout),
            ),
            "tokens, Tunery": (fewer, lambda: seconds(tokens_of(fewer))),
        }
        found = {way: [] for way in ways}
        for turn in range(args.turns):
            for way, (file, measure) in ways.items():
                found[way].append(file.stat().st_size / 1e6 / measure())
            print(
                f"turn {turn + 1}: " + ", ".join(f"{way} {values[-1]:.1f}" for way, values in found.items()), flush=True
            )
        json_loop, structure, tokenizer, tokens = (statistics.median(values) for values in found.values())
        size = many.stat().st_size / 1e6
        parts = [seconds_and_memory(command) for command in (structure_of(many), tokens_of(many))] if size else []
    ratios = {"structure": structure / json_loop, "tokens": tokens / tokenizer}
    for way, values in found.items():
        print(f"{way}: {statistics.median(values):.1f} MB/s")
    growth = 0.0
    for part, (took, cpu, early, peak) in zip(("structure", "tokens"), parts, strict=False):
        print(
            f"{part} of {size:.0f} MB: {took:.1f} s, {cpu:.1f} s of processor time; {early:.0f} MB of memory in the "
            f"first fifth, {peak:.0f} at most"
        )
        growth = max(growth, peak - early)
    if parts:
        ratios["whole"] = size / sum(took for took, *_ in parts) / tokenizer
    missed = [part for part, ratio in ratios.items() if ratio < TARGETS[part]]
    for part, ratio in ratios.items():
        print(f"{part}: {ratio:.2f} of its peer, target {TARGETS[part]}{', missed' if part in missed else ''}")
    if growth > MAX_GROWTH_MB:
        print(f"memory grew by {growth:.0f} MB, target {MAX_GROWTH_MB}, missed")
        missed.append("memory")
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
