"""Compares Tunery's trainer with TRL's in alternating runs: tokens per second, the loss on held-out rows, and the share
of the machine's peak.

npm run bench -- training [--turns 3] [--only speed|loss|peak] [--modes default,fp32,bf16]
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

from bench.training.rows import full_rows, mixed_rows, write

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
PEER = ROOT / ".local/peers/trl"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
MODES = ("default", "fp32", "bf16")


def peer_python() -> Path:
    """The peer's environment: its packages on top of the trainer's, so that both use the same torch."""
    python, stamp = PEER / "bin/python", PEER / "stamp"
    if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
        print("Setting up TRL in .local/peers/trl", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
        [site] = PEER.glob("lib/python*/site-packages")
        [ours] = (ROOT / ".local/python").glob("lib/python*/site-packages")
        (site / "trainer.pth").write_text(f"{ours}\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)], check=True)
        stamp.write_text(REQUIREMENTS.read_text())
    return python


def describe_machine() -> None:
    import torch

    capabilities = torch.cpu.get_capabilities()
    has = [name for name, there in capabilities.items() if there is True]
    cores = len(os.sched_getaffinity(0))
    print(f"{capabilities.get('cpu_name', 'CPU')}, {cores} cores: {' '.join(sorted(has))}\n", flush=True)


def run_json(command: list[str]) -> dict:
    """Runs a trainer and returns the JSON line that it prints at its end."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(rows: Path, *options: object) -> dict:
    return run_json([sys.executable, "-m", "bench.training.ours", str(MODEL), str(rows), *map(str, options)])


def trl(rows: Path, *options: object) -> dict:
    return run_json([str(peer_python()), "bench/training/peer_trl.py", str(MODEL), str(rows), *map(str, options)])


def speed(name: str, rows: Path, modes: tuple[str, ...], turns: int, steps: int, batch: int) -> None:
    """Alternates peer and Tunery. The first round has every mode of the peer, later rounds only its best one."""
    size = ("--steps", steps, "--batch", batch)
    found: dict[str, list[float]] = {}
    for turn in range(turns):
        for mode in modes:
            found.setdefault(f"TRL {mode}", []).append(
                trl(rows, "--mode", mode, "--out", rows.parent / "trl", *size)["tokens_per_second"]
            )
        result = ours(rows, *size)
        found.setdefault(f"Tunery {result['precision']}", []).append(result["tokens_per_second"])
        print(
            f"{name}, turn {turn + 1}: " + ", ".join(f"{who} {values[-1]}" for who, values in found.items()), flush=True
        )
        if turn == 0:
            modes = (max(modes, key=lambda mode: found[f"TRL {mode}"][0]),)
    best = statistics.median(found[f"TRL {modes[0]}"])
    us = statistics.median(next(values for who, values in found.items() if who.startswith("Tunery")))
    print(f"{name}: Tunery {us} tokens/s, TRL's best mode ({modes[0]}) {best}: {us / best:.2f} times\n", flush=True)


def loss(folder: Path, steps: int) -> None:
    """Trains both with the same rows, steps, rate and schedule; scores both results with the same code on unseen
    rows.
    """
    ratios = []
    for seed in (1, 2, 3):
        rows = mixed_rows(4 * steps + 64, seed)
        train, heldout = write(folder / "train.jsonl", rows[:-64]), write(folder / "heldout.jsonl", rows[-64:])
        options = ("--steps", steps, "--batch", 4, "--rate", 1e-3, "--seed", seed)
        before = ours(train, "--steps", 2, "--rate", 0, "--batch", 1, "--heldout", heldout)["heldout_loss"]
        ours_loss = ours(train, *options, "--heldout", heldout)["heldout_loss"]
        trl(train, *options, "--mode", "fp32", "--out", folder / "adapter", "--save")
        peer = ours(train, "--heldout", heldout, "--adapter", folder / "adapter")["heldout_loss"]
        ratios.append(ours_loss / peer)
        print(
            f"loss on 64 held-out rows, seed {seed}: before {before:.4f}, Tunery {ours_loss:.4f}, TRL {peer:.4f}",
            flush=True,
        )
    print(f"loss after {steps} steps: Tunery / TRL {min(ratios):.4f} to {max(ratios):.4f}\n", flush=True)


def peak(folder: Path) -> None:
    """The share of the measured peak of matrix multiplication that a whole step reaches, at rows of 512 tokens.

    Operations of a step, for each token and each weight of the linear layers: 2 forward and 2 backward (the input's
    gradient; a frozen weight has none), for adapters 6 (both gradients). The same 4 for the head on learned tokens.
    Attention: forward, and 2.5 times that backward, halved by causal order: 3.5 * 2 * tokens * 512 * width / 2 * 2 for
    each layer. The peak: a product of 2,048 x 2,048 matrices.
    """
    import torch

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    rows = write(folder / "full.jsonl", full_rows(16, 1))
    for precision in ("float32", "bfloat16"):
        dtype = getattr(torch, precision)
        a, b = torch.randn(2048, 2048, dtype=dtype), torch.randn(2048, 2048, dtype=dtype)
        times = []
        for _ in range(12):
            started = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - started)
        top = 2 * 2048**3 / statistics.median(times[2:])
        result = ours(rows, "--steps", 4, "--batch", 4, "--precision", precision)
        config = json.loads((MODEL / "config.json").read_text())
        width, wide, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
        linear = [
            (width, width),
            (width, keys),
            (width, keys),
            (width, width),
            (width, wide),
            (width, wide),
            (wide, width),
        ]
        weights = layers * sum(i * o for i, o in linear)
        adapters = layers * sum(16 * (i + o) for i, o in linear)
        attention = layers * 3.5 * 2 * 512 * width
        # Nearly all tokens of a full row are learned.
        operations = 4 * weights + 6 * adapters + 4 * width * config["vocab_size"] + attention
        reached = operations * result["tokens_per_second"]
        share = reached / top
        print(
            f"{precision}: peak {top / 1e9:.0f} GFLOPS, a step at 512 tokens {reached / 1e9:.0f}: {share:.0%} of it",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--modes", default=",".join(MODES), help="of TRL, for a shorter run; the best of them is what counts"
    )
    parser.add_argument("--only", choices=["speed", "loss", "peak"])
    args = parser.parse_args()
    modes = tuple(args.modes.split(","))
    describe_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.only in (None, "speed"):
            # Exactly as many rows as the steps use, so that both trainers see the same ones.
            speed(
                "mixed lengths", write(folder / "mixed.jsonl", mixed_rows(48, 7)), modes, args.turns, steps=6, batch=8
            )
            speed(
                "full rows of 512", write(folder / "full.jsonl", full_rows(12, 7)), modes, args.turns, steps=3, batch=4
            )
        if args.only in (None, "peak"):
            peak(folder)
        if args.only in (None, "loss"):
            loss(folder, steps=16)


if __name__ == "__main__":
    main()
