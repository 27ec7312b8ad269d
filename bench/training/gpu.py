"""Compares Tunery's trainer with TRL's and Unsloth's on one NVIDIA GPU, in alternating runs: tokens per second and GPU
memory. Ends with 1 where the best of them is not beaten by `TARGET`.

python -m bench.training.gpu [--shapes smollm2-135m,qwen2.5-1.5b,qwen2.5-7b] [--turns 3] [--only sft|dpo]
[--trl-modes flash,flash-liger] [--trl-python PYTHON] [--unsloth-python PYTHON]

The bases have the shapes of the models they are named after, with random weights: a step's time does not depend on
weights. The tokenizer is the default base's. Both sides learn about the same tokens in a step: the peers pack rows, as
many as fit; Tunery takes as many mixed rows as have so many tokens.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.training.rows import mixed_rows, pairs, write
from bench.training.run import peer_python
from trainer.tests.make_tiny import TOKENIZER, TOKENIZER_FILES

TARGET = 1.3
LENGTH = 1024


@dataclass(frozen=True)
class Shape:
    family: str
    width: int
    mlp_width: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool
    # Packed rows of a step, as many as every trainer has memory for.
    batch: int
    # Pairs of a step of preferences.
    pairs: int


SHAPES = {
    "smollm2-135m": Shape("Llama", 576, 1536, 30, 9, 3, 49152, True, 16, 32),
    "qwen2.5-1.5b": Shape("Qwen2", 1536, 8960, 28, 12, 2, 151936, True, 8, 16),
    "qwen2.5-7b": Shape("Qwen2", 3584, 18944, 28, 28, 4, 152064, False, 4, 4),
}
# Seconds for a turn.
LIMIT = 120
# CUDA graphs are captured in the first steps, one for each of few sizes (`trainer/model/cuda_graphs.py`), and the
# peers compile their kernels: the warm-up includes every size.
STEPS, WARM_UP = 20, 8


def base_of(name: str, folder: Path) -> Path:
    """Writes a base of the shape in bf16."""
    import torch
    import transformers

    if folder.exists():
        return folder
    shape = SHAPES[name]
    config = getattr(transformers, f"{shape.family}Config")(
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = getattr(transformers, f"{shape.family}ForCausalLM")._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for file in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / file, folder / file)
    return folder


def rows_for(count: int, tokenizer, tokens: int) -> tuple[list[dict], int]:
    """`count` times as many mixed rows as have about `tokens` tokens; also their number."""
    sample = mixed_rows(500, 7)
    texts = tokenizer.apply_chat_template([row["messages"] for row in sample], tokenize=True, return_dict=True)
    mean = statistics.mean(min(len(ids), LENGTH) for ids in texts["input_ids"])
    batch = round(tokens / mean)
    every, drawn, rows = mixed_rows(None, 7), random.Random(7), []
    while len(rows) < count * batch:
        rows += drawn.sample(every, len(every))
    return rows[: count * batch], batch


class Turn:
    """A trainer that has been started ahead of its turn, so that its imports do not take the GPU's time."""

    def __init__(self, who: str, command: list) -> None:
        self.who, self.log = who, tempfile.TemporaryFile("w+")  # noqa: SIM115  Closed with this object.
        self.process = subprocess.Popen(
            [str(part) for part in [*command, "--wait"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS.get(who.split()[0], os.environ.get("PYTHONPATH", ""))},
        )

    def run(self) -> dict | None:
        started = time.perf_counter()
        try:
            out, _ = self.process.communicate("\n", timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
        if self.process.returncode != 0:
            self.log.seek(0)
            print(f"  {self.who} failed:\n{self.log.read()[-2500:]}", flush=True)
            return None
        line = json.loads(out.strip().splitlines()[-1])
        seconds = time.perf_counter() - started
        print(
            f"  {self.who}: {line['tokens_per_second']:,.0f} tokens/s, {line['peak_memory_mb']:,} MB, loss "
            f"{line['losses'][-1]:.3f}, {line['real_tokens']:,} tokens in {line['seconds']} s ({seconds:.0f} s in all)",
            flush=True,
        )
        return line


# Packages of a trainer where they are not its Python's own, by name.
PATHS: dict[str, str] = {}


def compare(name: str, commands: dict[str, list], turns: int) -> bool:
    """Runs each in turn; after the first turn, of TRL's modes only the best one. Returns whether the target is met."""
    found: dict[str, list[dict]] = {}
    plan = list(commands)
    for turn in range(turns):
        # Two start at a time: more would compete for the cores of the one that is measured.
        waiting = [Turn(who, commands[who]) for who in plan[:2]]
        for index, who in enumerate(plan):
            line = waiting.pop(0).run()
            if index + 2 < len(plan):
                waiting.append(Turn(plan[index + 2], commands[plan[index + 2]]))
            if line:
                found.setdefault(who, []).append(line)
        if turn == 0:
            speed = {who: lines[0]["tokens_per_second"] for who, lines in found.items()}
            trl = [who for who in found if who.startswith("TRL")]
            best = {max(trl, key=speed.get)} if trl else set()
            plan = [who for who in found if not who.startswith("TRL") or who in best]
    speeds = {who: statistics.median(each["tokens_per_second"] for each in lines) for who, lines in found.items()}
    for who, lines in found.items():
        each = [line["tokens_per_second"] for line in lines]
        print(
            f"{name}: {who} {speeds[who]:,.0f} tokens/s ({min(each):,.0f} to {max(each):,.0f}, {len(each)} turns), "
            f"{lines[0]['peak_memory_mb']:,} MB",
            flush=True,
        )
    peers = [who for who in speeds if who != "Tunery"]
    if "Tunery" not in speeds or not peers:
        return False
    best = max(peers, key=speeds.get)
    ratio = speeds["Tunery"] / speeds[best]
    verdict = "meets" if ratio >= TARGET else "MISSES"
    print(f"{name}: {ratio:.2f} times {best}: {verdict} {TARGET}\n", flush=True)
    return ratio >= TARGET


def modes_of(args: argparse.Namespace) -> list[str]:
    """TRL's modes that are candidates for its best."""
    if args.trl_modes is None:
        return ["flash", "flash-liger"] if args.only == "sft" else ["half", "liger"]
    return [mode for mode in args.trl_modes.split(",") if mode]


def commands_of(args: argparse.Namespace, shape: Shape, model: Path, folder: Path, tokenizer) -> dict[str, list]:
    size = ("--steps", args.steps, "--warm-up", args.warm_up, "--max-length", LENGTH)
    if args.only == "dpo":
        rows = write(folder / "pairs.jsonl", pairs(args.steps * shape.pairs, 7))
        options = (model, rows, *size, "--batch", shape.pairs, "--objective", "dpo")
        script = "bench/training/peer_trl_preferences.py"
        trl = {
            f"TRL {mode}": [args.trl_python, script, *options, "--mode", mode, "--out", folder / "trl"]
            for mode in modes_of(args)
        }
        return trl | {"Tunery": [sys.executable, "-m", "bench.training.ours", *options]}
    made, batch = rows_for(args.steps, tokenizer, shape.batch * LENGTH)
    rows = write(folder / "rows.jsonl", made)
    packed = (model, rows, *size, "--batch", shape.batch, "--out", folder / "peer")
    commands = {
        f"TRL {mode}": [args.trl_python, "bench/training/peer_trl.py", *packed, "--mode", mode]
        for mode in modes_of(args)
    }
    commands["Tunery"] = [sys.executable, "-m", "bench.training.ours", model, rows, *size, "--batch", batch]
    if args.unsloth_python:
        commands["Unsloth"] = [args.unsloth_python, "bench/training/peer_unsloth.py", *packed]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--only", choices=["sft", "dpo"], default="sft")
    parser.add_argument("--trl-modes", help="instead of all that may be the best")
    parser.add_argument("--trl-python", type=Path, help="where TRL is, else it is set up in .local/peers")
    parser.add_argument("--unsloth-python", type=Path, help="where Unsloth is; without it, it is left out")
    parser.add_argument("--unsloth-packages", default="", help="PYTHONPATH of Unsloth")
    parser.add_argument("--models", type=Path, help="where the bases are kept from one run to the next")
    args = parser.parse_args()
    import torch
    from transformers import AutoTokenizer

    if not torch.cuda.is_available():
        raise SystemExit("There is no NVIDIA GPU here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    args.trl_python = args.trl_python or peer_python()
    if args.unsloth_packages:
        PATHS["Unsloth"] = args.unsloth_packages
    tokenizer, met = AutoTokenizer.from_pretrained(TOKENIZER), []
    with tempfile.TemporaryDirectory() as name:
        for shape in args.shapes.split(","):
            # In a process of its own, which returns the GPU's memory.
            model = (args.models or Path(name)) / shape
            subprocess.run([sys.executable, "-c", MAKE_BASE, shape, str(model)], check=True)
            commands = commands_of(args, SHAPES[shape], model, Path(name), tokenizer)
            met.append(compare(f"{shape}, {args.only}", commands, args.turns))
    sys.exit(0 if all(met) else 1)


MAKE_BASE = """
import sys
from pathlib import Path
from bench.training.gpu import base_of
base_of(sys.argv[1], Path(sys.argv[2]))
"""


if __name__ == "__main__":
    main()
