"""Compares preference training with TRL's DPOTrainer and KTOTrainer in alternating runs: tokens per second, and the
loss on held-out rows.

npm run bench -- preferences [--turns 2] [--only dpo|kto]
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.training.rows import pairs, rated, write
from bench.training.run import MODEL, describe_machine, ours, peer_python, run_json

MODES = ("default", "bf16", "precompute")
SIZE = ("--batch", 4, "--rate", 1e-4, "--max-length", 512)


def trl(rows: Path, *options: object) -> dict:
    script = "bench/training/peer_trl_preferences.py"
    return run_json([str(peer_python()), script, str(MODEL), str(rows), *map(str, options)])


def in_our_order(path: Path, rows: list[dict], *options: object) -> Path:
    """The rows in the order in which Tunery takes them, for TRL, which takes them as they come."""
    order = ours(write(path, rows), *options, "--order")
    return write(path.with_suffix(".ordered.jsonl"), [rows[index] for index in order])


def speed(objective: str, made: Callable[[int, int], list[dict]], folder: Path, turns: int, steps: int) -> None:
    options = ("--objective", objective, "--steps", steps, *SIZE)
    rows = made(4 * steps, 7)
    ordered = in_our_order(folder / "speed.jsonl", rows, *options)
    found: dict[str, list[float]] = {}
    modes = MODES
    for turn in range(turns):
        for mode in modes:
            result = trl(ordered, *options, "--mode", mode, "--out", folder / "trl")
            found.setdefault(f"TRL {mode}", []).append(result["tokens_per_second"])
        result = ours(folder / "speed.jsonl", *options)
        found.setdefault("Tunery", []).append(result["tokens_per_second"])
        print(
            f"{objective}, turn {turn + 1}: " + ", ".join(f"{who} {each[-1]}" for who, each in found.items()),
            flush=True,
        )
        if turn == 0:
            modes = (max(modes, key=lambda mode: found[f"TRL {mode}"][0]),)
    best, us = (statistics.median(found[who]) for who in (f"TRL {modes[0]}", "Tunery"))
    print(
        f"{objective}: Tunery {us} tokens/s, TRL's best mode ({modes[0]}) {best}: {us / best:.2f} times\n", flush=True
    )


def loss(objective: str, made: Callable[[int, int], list[dict]], folder: Path, steps: int) -> None:
    """Trains both in float32 with the same rows in the same order; scores both results with the same code."""
    ratios = []
    for seed in (1, 2, 3):
        options = ("--objective", objective, "--steps", steps, "--seed", seed, *SIZE)
        rows = made(4 * steps + 32, seed)
        heldout = write(folder / "heldout.jsonl", rows[4 * steps :])
        train = folder / "train.jsonl"
        ordered = in_our_order(train, rows[: 4 * steps], *options)
        us = ours(train, *options, "--precision", "float32", "--heldout", heldout)
        peer = trl(ordered, *options, "--mode", "fp32", "--out", folder / "adapter", "--save")
        scored = ours(train, *options, "--precision", "float32", "--heldout", heldout, "--adapter", folder / "adapter")
        ratios.append(us["heldout_loss"] / scored["heldout_loss"])
        print(
            f"{objective}, seed {seed}: loss on 32 held-out rows: Tunery {us['heldout_loss']:.4f}, TRL "
            f"{scored['heldout_loss']:.4f}; of the last step: {us['losses'][-1]:.4f}, {peer['losses'][-1]:.4f}",
            flush=True,
        )
    print(f"{objective}: loss after {steps} steps: Tunery / TRL {min(ratios):.4f} to {max(ratios):.4f}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=["dpo", "kto"])
    args = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as name:
        for objective, made in (("dpo", pairs), ("kto", rated)):
            if args.only in (None, objective):
                speed(objective, made, Path(name), args.turns, steps=6)
                loss(objective, made, Path(name), steps=8)


if __name__ == "__main__":
    main()
