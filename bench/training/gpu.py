"""Compares Tunery's trainer with TRL's on one NVIDIA GPU, in alternating runs: tokens per second and GPU memory.

python -m bench.training.gpu [--shapes smollm2-135m,qwen2.5-1.5b] [--turns 3] [--modes bf16,half,liger,packing]
[--peer-python PYTHON]

The bases have the shapes of the models they are named after, with random weights: a step's time does not depend on
weights. The tokenizer is the default base's.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.training.rows import conversation, documented, mixed_rows, write
from bench.training.run import peer_python, run_json
from trainer.tests.make_tiny import TOKENIZER, TOKENIZER_FILES

# Family, hidden size, MLP size, layers, heads, key heads, vocabulary, tied embeddings.
SHAPES = {
    "smollm2-135m": ("Llama", 576, 1536, 30, 9, 3, 49152, True),
    "llama3.2-1b": ("Llama", 2048, 8192, 16, 32, 8, 128256, True),
    "qwen2.5-1.5b": ("Qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "qwen2.5-7b": ("Qwen2", 3584, 18944, 28, 28, 4, 152064, False),
}
MODES = ("default", "bf16", "half", "liger", "packing")
# CUDA graphs are captured in the first steps, one for each of few sizes (`trainer/model/cuda_graphs.py`); the warm-up
# includes every size.
STEPS, WARM_UP = 40, 16


def base_of(shape: str, folder: Path) -> Path:
    """Writes a base of the shape in bf16."""
    import torch
    import transformers

    if folder.exists():
        return folder
    family, width, wide, layers, heads, key_heads, vocabulary, tied = SHAPES[shape]
    config = getattr(transformers, f"{family}Config")(
        hidden_size=width,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = getattr(transformers, f"{family}ForCausalLM")._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / name, folder / name)
    return folder


def long_rows(count: int, seed: int) -> list[dict]:
    """Rows that all reach the length limit. Some texts occur in several rows."""
    texts, drawn = [f"{name}: {text}" for name, text in documented()], random.Random(seed)
    return [conversation("Recite the manual.", "\n\n".join(drawn.sample(texts, 40))[:8000]) for _ in range(count)]


def loads(folder: Path, length: int) -> Iterator[tuple[str, Path, int]]:
    """Name, rows and batch size of each load. Full rows reach the length limit; half of the mixed rows are under 50
    tokens.
    """
    for name, batch, rows in (("mixed lengths", 16, mixed_rows), (f"full rows of {length}", 8, long_rows)):
        # Exactly as many rows as the steps use, so that both trainers see the same ones.
        yield name, write(folder / f"{batch}.jsonl", rows(STEPS * batch, 7)), batch


def timed(command: list) -> dict:
    line = run_json([str(part) for part in command])
    print(
        f"  {line.get('mode', 'Tunery')}: {line['tokens_per_second']:,.0f} tokens/s, {line['peak_memory_mb']:,} MB",
        flush=True,
    )
    return line


def compare(
    name: str, model: Path, rows: Path, batch: int, length: int, turns: int, modes: tuple[str, ...], peer: Path
) -> None:
    size = ("--steps", STEPS, "--warm-up", WARM_UP, "--batch", batch, "--max-length", length)
    found: dict[str, list[dict]] = {}
    for _ in range(turns):
        for mode in modes:
            command = [
                peer,
                "bench/training/peer_trl.py",
                model,
                rows,
                "--mode",
                mode,
                "--out",
                rows.parent / "trl",
                *size,
            ]
            found.setdefault(f"TRL {mode}", []).append(timed(command))
        found.setdefault("Tunery", []).append(timed([sys.executable, "-m", "bench.training.ours", model, rows, *size]))
        # After the first round only the peer's best mode.
        speeds = {who: statistics.median(each["tokens_per_second"] for each in lines) for who, lines in found.items()}
        best = max((who for who in speeds if who != "Tunery"), key=speeds.get, default=None)
        modes = (best.removeprefix("TRL "),) if best else ()
    for who, lines in found.items():
        each = [line["tokens_per_second"] for line in lines]
        print(
            f"{name}: {who} {speeds[who]:,.0f} tokens/s ({min(each):,.0f} to {max(each):,.0f}), "
            f"{lines[0]['peak_memory_mb']:,} MB",
            flush=True,
        )
    if best:
        print(f"{name}: {speeds['Tunery'] / speeds[best]:.2f} times {best}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="smollm2-135m,qwen2.5-1.5b")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--modes", default=",".join(MODES), help="of TRL; the best of the first turn is what the others compare with"
    )
    parser.add_argument("--only", choices=["mixed", "full"])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--peer-python", type=Path, help="where TRL is, else it is set up in .local/peers")
    parser.add_argument("--models", type=Path, help="where the bases are kept from one run to the next")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("There is no NVIDIA GPU here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    peer = args.peer_python or peer_python()
    with tempfile.TemporaryDirectory() as name:
        for shape in args.shapes.split(","):
            model = base_of(shape, (args.models or Path(name)) / shape)
            for what, rows, batch in loads(Path(name), args.length):
                if args.only and not what.startswith(args.only):
                    continue
                compare(
                    f"{shape}, {what}",
                    model,
                    rows,
                    batch,
                    args.length,
                    args.turns,
                    tuple(filter(None, args.modes.split(","))),
                    peer,
                )


if __name__ == "__main__":
    main()
