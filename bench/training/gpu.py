"""Compares Tunery's trainer with TRL's and Unsloth's on one NVIDIA GPU, in turns: tokens per second and GPU
memory. Ends with 1 where the best of them is not beaten by `TARGET`.

npm run bench -- training-gpu [--loads smollm2-135m,qwen2.5-1.5b,qwen2.5-7b,smollm2-135m:dpo] [--turns 3] [--window 10]
[--trl-python PYTHON] [--unsloth-python PYTHON] [--unsloth-packages FOLDER]

The bases have the shapes of the models they are named after, with random weights: a step's time does not depend on
weights. The tokenizer is the default base's. Both sides learn about the same tokens in a step: the peers pack rows, as
many as fit; Tunery takes as many mixed rows as have so many tokens.
"""

import argparse
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.support import shapes
from bench.training.rows import mixed_rows, pairs, write
from bench.training.run import peer_python
from trainer.tests.make_tiny import TOKENIZER, TOKENIZER_FILES

TARGET = 1.3
LENGTH = 1024


@dataclass(frozen=True)
class Shape:
    """A model, how many packed rows and pairs of preferences a step has (all trainers are in the GPU's memory at once),
    and TRL's modes that may be its best.
    """

    kind: str
    fields: dict[str, Any]
    batch: int
    pairs: int
    trl_modes: tuple[str, ...] = ("flash", "flash-liger")
    unsloth: bool = False


def llama(width: int, mlp_width: int, layers: int, heads: int, key_heads: int, vocabulary: int, **fields: Any) -> dict:
    """The configuration of a layer like Llama's."""
    return {
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        **fields,
    }


SHAPES = {
    "smollm2-135m": Shape("LlamaForCausalLM", llama(576, 1536, 30, 9, 3, 49152), 16, 32, ("flash",), unsloth=True),
    "qwen2.5-1.5b": Shape("Qwen2ForCausalLM", llama(1536, 8960, 28, 12, 2, 151936), 4, 16, unsloth=True),
    # Three of them have no room.
    "qwen2.5-7b": Shape(
        "Qwen2ForCausalLM", llama(3584, 18944, 28, 28, 4, 152064, tie_word_embeddings=False), 2, 4, ("flash-liger",)
    ),
    "qwen3-0.6b": Shape(*shapes.SHAPES["qwen3-0.6b"], 8, 16),
    "gemma3-1b": Shape(*shapes.SHAPES["gemma3-1b"], 4, 8),
    # FlashAttention between documents keeps those of a delta rule no further apart than `packing` does.
    "qwen3.5-0.8b": Shape(*shapes.SHAPES["qwen3.5-0.8b"], 4, 8, ("half", "flash")),
    "mixture-8x": Shape(*shapes.SHAPES["mixture-8x"], 8, 16, ("flash",)),
}
LOADS = "smollm2-135m,qwen2.5-1.5b,qwen2.5-7b,smollm2-135m:dpo"
# Seconds for what a trainer does in a turn.
LIMIT = 120
# CUDA graphs are captured in the first steps, one for each of few sizes (`trainer/model/cuda_graphs.py`), and the
# peers compile their kernels: the warm-up includes every size.
WINDOW, WARM_UP = 10, 8


def base_of(name: str, folder: Path) -> None:
    """Writes a base of the shape in bf16."""
    import torch
    import transformers

    shape = SHAPES[name]
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    fields = {"tie_word_embeddings": True, "max_position_embeddings": 8192, **shape.fields, **ends}
    model_class = getattr(transformers, shape.kind)
    config = model_class.config_class(**fields)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = model_class._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def start_base(name: str, folder: Path) -> subprocess.Popen:
    """Writes the base in its own process, which returns the GPU's memory; the tokenizer is there at once."""
    folder.mkdir(parents=True)
    for file in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / file, folder / file)
    code = f"from pathlib import Path; from bench.training.gpu import base_of; base_of({name!r}, Path({str(folder)!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


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


class Contender:
    """A trainer that takes turns with the others. It prints a line and waits: for the first turn when its imports and
    rows are ready, then after its warm-up and after each window of steps.
    """

    def __init__(self, who: str, command: list) -> None:
        self.who, self.log = who, tempfile.TemporaryFile("w+")  # noqa: SIM115  Closed with this object.
        self.windows: list[dict] = []
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def next_line(self) -> dict | None:
        """What it prints next in JSON; None if it ends instead."""
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{") and line.rstrip().endswith("}") and "'" not in line:
                    return json.loads(line)
        finally:
            timer.cancel()
        self.log.seek(0)
        print(f"  {self.who} failed:\n{self.log.read()[-2500:]}", flush=True)
        return None

    def begin(self) -> None:
        # It may have ended, which `next_line` says.
        with contextlib.suppress(OSError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def compare(name: str, contenders: list[Contender], turns: int) -> bool:
    """Warms all up at once, then gives each its window in turn. Returns whether the target is met."""
    began = time.perf_counter()
    ready = [contender for contender in contenders if contender.next_line() is not None]
    for contender in ready:
        contender.begin()
    warm = [contender for contender in ready if contender.next_line() is not None]
    print(f"{name}: {len(warm)} of {len(contenders)} warm after {time.perf_counter() - began:.0f} s", flush=True)
    for _ in range(turns):
        for contender in warm:
            contender.begin()
            if window := contender.next_line():
                contender.windows.append(window)
    for contender in contenders:
        contender.end()
    speeds: dict[str, float] = {}
    for contender in warm:
        each = [window["tokens"] / window["seconds"] for window in contender.windows]
        if not each:
            continue
        speeds[contender.who] = statistics.median(each)
        print(
            f"{name}: {contender.who} {statistics.median(each):,.0f} tokens/s ({min(each):,.0f} to {max(each):,.0f}, "
            f"{len(each)} turns of {contender.windows[0]['tokens']:,} tokens), "
            f"{contender.windows[-1]['peak_memory_mb']:,} MB",
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


def commands_of(
    args: argparse.Namespace, shape: Shape, objective: str, model: Path, folder: Path, tokenizer
) -> dict[str, list]:
    """The command of each trainer."""
    steps = args.warm_up + args.turns * args.window
    size = ("--steps", steps, "--warm-up", args.warm_up, "--window", args.window, "--max-length", LENGTH)
    us = (sys.executable, "-m", "bench.training.ours", model)
    if objective == "dpo":
        rows = write(folder / f"{model.name}-pairs.jsonl", pairs(steps * shape.pairs, 7))
        options = (rows, *size, "--batch", shape.pairs, "--objective", "dpo")
        trl = (args.trl_python, "bench/training/peer_trl_preferences.py", model, *options, "--out", folder / "trl")
        return {f"TRL {mode}": [*trl, "--mode", mode] for mode in ("half", "liger")} | {"Tunery": [*us, *options]}
    made, batch = rows_for(steps, tokenizer, shape.batch * LENGTH)
    rows = write(folder / f"{model.name}.jsonl", made)
    packed = (model, rows, *size, "--batch", shape.batch, "--out", folder / "peer")
    trl = (args.trl_python, "bench/training/peer_trl.py", *packed)
    commands = {f"TRL {mode}": [*trl, "--mode", mode] for mode in shape.trl_modes}
    commands["Tunery"] = [*us, rows, *size, "--batch", batch]
    if args.unsloth_python and shape.unsloth:
        packages = [f"PYTHONPATH={args.unsloth_packages}"] if args.unsloth_packages else []
        commands["Unsloth"] = ["env", *packages, args.unsloth_python, "bench/training/peer_unsloth.py", *packed]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loads", default=LOADS, help="shapes, with :dpo for preferences")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--window", type=int, default=WINDOW, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--trl-python", type=Path, help="where TRL is, else it is set up in .local/peers")
    parser.add_argument("--unsloth-python", type=Path, help="where Unsloth is; without it, it is left out")
    parser.add_argument("--unsloth-packages", default="", help="PYTHONPATH of Unsloth")
    args = parser.parse_args()
    import torch
    from transformers import AutoTokenizer

    if not torch.cuda.is_available():
        raise SystemExit("There is no NVIDIA GPU here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    args.trl_python = args.trl_python or peer_python()
    tokenizer, met = AutoTokenizer.from_pretrained(TOKENIZER), []
    loads = [
        (shape, objective or "sft") for shape, _, objective in (load.partition(":") for load in args.loads.split(","))
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = {shape: start_base(shape, folder / shape) for shape in dict(loads)}
        everyone = [
            [
                Contender(*each)
                for each in commands_of(args, SHAPES[shape], objective, folder / shape, folder, tokenizer).items()
            ]
            for shape, objective in loads
        ]
        try:
            for (shape, objective), contenders in zip(loads, everyone, strict=True):
                if bases[shape].wait() != 0:
                    raise SystemExit(f"The base {shape} could not be written.")
                met.append(compare(f"{shape}, {objective}", contenders, args.turns))
        finally:
            for contender in [each for contenders in everyone for each in contenders]:
                contender.end()
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
