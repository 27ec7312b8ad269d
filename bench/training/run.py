"""Compares Tunery's trainer with TRL's in alternating runs: tokens per second, the loss on held-out rows, and the share
of the machine's peak. Ends with 1 where a figure misses its target.

npm run bench -- training [--turns 3] [--only mixed|full-rows|qlora|full|loss|peak|memory] [--modes default,fp32,bf16]
[--threads 1] [--shapes gemma3-1b,granite]

With shapes of bench/support/shapes.py, the base has that shape and random weights: speed alone is compared, and three
steps of two rows are enough. A family's name is one too. With one thread, tokens of a CPU second compare the two also
beside other work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.support import machine, shapes
from bench.training.rows import full_rows, mixed_rows, write

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
PEER = ROOT / ".local/peers/trl"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
# TRL's ways of running: the fastest of the first turn is the peer. `packing` fills rows, which full ones need not.
MODES = ("default", "fp32", "bf16", "half", "packing", "compile")
# Seconds for a mode: compiling took over four minutes for one step.
LIMIT = 600
LIMIT_OF_SHAPES = 180
THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Comparison:
    """Rows and steps of a comparison of speeds, and how many times TRL's speed ours should be, if that has a target."""

    title: str
    make: Callable[[int, int], list[dict]]
    steps: int
    batch: int
    target: float | None
    method: str = "lora"


COMPARISONS = {
    "mixed": Comparison("mixed lengths", mixed_rows, 6, 8, 8),
    "full-rows": Comparison("full rows of 512", full_rows, 3, 4, 2.5),
    "qlora": Comparison("qlora, full rows of 512", full_rows, 3, 4, None, "qlora"),
    "full": Comparison("full training, full rows of 512", full_rows, 3, 4, None, "full"),
}
LOSS_SHARE, PEAK_SHARE, MEMORY_SHARE = 0.01, 0.45, 0.1
SHAPES = ROOT / ".local/bench/shapes"
# Goals for mixed rows.
DENSE, HYBRID_OR_MIXTURE = 4, 2.5


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
    print(f"{capabilities.get('cpu_name', 'CPU')}, {cores} cores: {' '.join(sorted(has))}", flush=True)
    print(f"{machine.text(machine.limits())}\n", flush=True)


def run_json(command: list[str], limit: float | None = None) -> dict:
    """Runs a trainer and returns the JSON line that it prints at its end."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(model: Path, rows: Path, *options: object) -> dict:
    return run_json([sys.executable, "-m", "bench.training.ours", str(model), str(rows), *map(str, options)])


def trl(model: Path, rows: Path, *options: object, limit: float | None = None) -> dict:
    script = "bench/training/peer_trl.py"
    return run_json([str(peer_python()), script, str(model), str(rows), *map(str, options)], limit)


def speed(model: Path, comparison: Comparison, folder: Path, modes: list[str], turns: int, threads: int) -> bool:
    """Alternates peer and Tunery. The first turn has every mode of the peer, later turns only its best one. Returns
    whether the target was met.
    """
    # Exactly as many rows as the steps use, so that both trainers see the same ones.
    rows = write(folder / "rows.jsonl", comparison.make(comparison.steps * comparison.batch, 7))
    common = ("--steps", comparison.steps, "--threads", threads, "--method", comparison.method)
    found: dict[str, list[tuple[float, float]]] = {}
    limit = LIMIT if model == MODEL else LIMIT_OF_SHAPES
    for turn in range(turns):
        for mode in modes:
            # A packed row has the tokens of about three mixed ones.
            batch = max(1, comparison.batch * 3 // 8) if mode == "packing" else comparison.batch
            try:
                result = trl(
                    model, rows, "--mode", mode, "--out", folder / "trl", "--batch", batch, *common, limit=limit
                )
            except (SystemExit, subprocess.TimeoutExpired) as error:
                print(f"{comparison.title}: TRL {mode} is left out: {str(error).strip().splitlines()[-1]}", flush=True)
                continue
            found.setdefault(f"TRL {mode}", []).append(rates_of(result))
        result = ours(model, rows, "--batch", comparison.batch, *common)
        found.setdefault("Tunery", []).append(rates_of(result))
        line = ", ".join(f"{who} {values[-1][0]:.1f} ({values[-1][1]:.1f})" for who, values in found.items())
        print(f"{comparison.title}, turn {turn + 1}, tokens/s (of a CPU second): {line}", flush=True)
        if found.keys() == {"Tunery"}:
            print(f"{comparison.title}: TRL took no {comparison.steps} steps in any mode\n", flush=True)
            return True
        if turn == 0:
            # On one core, other work changes the time on the clock alone.
            modes = [max(found.keys() - {"Tunery"}, key=lambda who: found[who][0][threads == 1]).removeprefix("TRL ")]
    ratios = []
    for which in (0, 1):
        best, us = (statistics.median(each[which] for each in found[who]) for who in (f"TRL {modes[0]}", "Tunery"))
        ratios.append(us / best)
    ratio, target = ratios[threads == 1], comparison.target
    print(
        f"{comparison.title}: {ratios[0]:.2f} times TRL's best mode ({modes[0]}), {ratios[1]:.2f} by CPU time"
        f"{verdict(target is None or ratio >= target, target)}\n",
        flush=True,
    )
    return target is None or ratio >= target


def speed_of_shape(shape: str, only: str | None, modes: list[str], turns: int, threads: int) -> bool:
    model = SHAPES / shape
    if not (model / "config.json").exists():
        shapes.write(shape, model)
    config = json.loads((model / "config.json").read_text())
    target = DENSE if is_dense(config) else HYBRID_OR_MIXTURE
    met = []
    with tempfile.TemporaryDirectory() as folder:
        if only == "memory":
            return memory(model, shape, Path(folder), threads)
        for part in [only] if only else ["mixed", "full-rows"]:
            few = replace(
                COMPARISONS[part],
                title=f"{shape}, {COMPARISONS[part].title}",
                steps=3,
                batch=8 if part == "mixed" else 2,
                target=target if part == "mixed" else None,
            )
            met.append(speed(model, few, Path(folder), modes, turns, threads))
    return all(met)


def memory(model: Path, title: str, folder: Path, threads: int) -> bool:
    """The most resident memory of QLoRA with 4 rows of 512 tokens a step, beside its prediction. Returns whether it is
    within `MEMORY_SHARE` of that.
    """
    rows = write(folder / "rows.jsonl", full_rows(8, 7))
    result = ours(model, rows, "--batch", 4, "--steps", 2, "--threads", threads, "--method", "qlora")
    peak, predicted = result["peak_memory_mb"], result["predicted_mb"]
    met = abs(peak / predicted - 1) <= MEMORY_SHARE
    print(
        f"{title}, qlora, 4 rows of 512: {peak:,} MB, predicted {predicted:,}: {peak / predicted:.2f}"
        f"{verdict(met, MEMORY_SHARE)}; {result['tokens_per_second']} tokens/s\n",
        flush=True,
    )
    return met


def is_dense(config: dict) -> bool:
    """Whether every layer has attention and one feed-forward network."""
    kinds = {*config.get("layer_types", []), *config.get("layers_block_type", [])}
    experts = any(value for name, value in config.items() if name.endswith("_experts"))
    return not experts and kinds <= {"full_attention", "sliding_attention", "chunked_attention"}


def rates_of(result: dict) -> tuple[float, float]:
    """Tokens of a second, and of a CPU second."""
    return result["tokens_per_second"], result["real_tokens"] / result["cpu_seconds"]


def verdict(met: bool, target: float | None) -> str:
    return "" if target is None else f": {'meets' if met else 'MISSES'} {target:g}"


def loss(folder: Path, steps: int, threads: int) -> bool:
    """Trains both with the same rows, steps, rate and schedule; scores both results with the same code on unseen
    rows. Returns whether they are close.
    """
    ratios = []
    for seed in (1, 2, 3):
        rows = mixed_rows(4 * steps + 64, seed)
        train, heldout = write(folder / "train.jsonl", rows[:-64]), write(folder / "heldout.jsonl", rows[-64:])
        options = ("--steps", steps, "--batch", 4, "--rate", 1e-3, "--seed", seed, "--threads", threads)
        before = ours(MODEL, train, "--steps", 2, "--rate", 0, "--batch", 1, "--heldout", heldout)["heldout_loss"]
        ours_loss = ours(MODEL, train, *options, "--heldout", heldout)["heldout_loss"]
        trl(MODEL, train, *options, "--mode", "fp32", "--out", folder / "adapter", "--save")
        peer = ours(MODEL, train, "--heldout", heldout, "--adapter", folder / "adapter")["heldout_loss"]
        ratios.append(ours_loss / peer)
        print(
            f"loss on 64 held-out rows, seed {seed}: before {before:.4f}, Tunery {ours_loss:.4f}, TRL {peer:.4f}",
            flush=True,
        )
    met = all(abs(ratio - 1) <= LOSS_SHARE for ratio in ratios)
    line = f"loss after {steps} steps: Tunery / TRL {min(ratios):.4f} to {max(ratios):.4f}"
    print(f"{line}{verdict(met, LOSS_SHARE)}\n", flush=True)
    return met


def peak(folder: Path, threads: int) -> bool:
    """The share of the measured peak of matrix multiplication that a whole step reaches, at rows of 512 tokens.

    Operations of a step, for each token and each weight of the linear layers: 2 forward and 2 backward (the input's
    gradient; a frozen weight has none), for adapters 6 (both gradients). The same 4 for the head on learned tokens.
    Attention: forward, and 2.5 times that backward, halved by causal order: 3.5 * 2 * tokens * 512 * width / 2 * 2 for
    each layer. The peak: products of 2,048 x 2,048 matrices after each step. Returns whether the share in bfloat16 is
    met.
    """
    met = True
    rows = write(folder / "full.jsonl", full_rows(16, 1))
    for precision in ("float32", "bfloat16"):
        options = ("--steps", 4, "--batch", 4, "--precision", precision, "--threads", threads, "--peak")
        result = ours(MODEL, rows, *options)
        top = result["peak_flops"]
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
        reached = operations * rates_of(result)[threads == 1]
        share = reached / top
        met = share >= PEAK_SHARE
        print(
            f"{precision}: peak {top / 1e9:.0f} GFLOPS, a step at 512 tokens {reached / 1e9:.0f}: {share:.0%} of it"
            f"{verdict(met, PEAK_SHARE)}",
            flush=True,
        )
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--modes", default=",".join(MODES), help="of TRL, for a shorter run; the best of them is what counts"
    )
    parser.add_argument("--only", choices=[*COMPARISONS, "loss", "peak", "memory"])
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--shapes", help=f"{', '.join(shapes.SHAPES)}, or families of tests/families, with commas")
    args = parser.parse_args()
    modes, met = args.modes.split(","), []
    describe_machine()
    if args.shapes:
        for shape in args.shapes.split(","):
            met.append(speed_of_shape(shape, args.only, modes, args.turns, args.threads))
        sys.exit(0 if all(met) else 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, comparison in COMPARISONS.items():
            if args.only in (None, part):
                wanted = modes if part == "mixed" else [mode for mode in modes if mode != "packing"]
                met.append(speed(MODEL, comparison, folder, wanted, args.turns, args.threads))
        if args.only in (None, "peak"):
            met.append(peak(folder, args.threads))
        if args.only == "memory":
            met.append(memory(MODEL, "SmolLM2-135M", folder, args.threads))
        if args.only in (None, "loss"):
            met.append(loss(folder, steps=16, threads=args.threads))
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
