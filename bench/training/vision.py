"""Compares training with pictures with TRL's in alternating runs: tokens per second, and the loss on held-out rows. The
base has SmolVLM-256M's shape and random weights.

npm run bench -- vision [--turns 2] [--only speed|loss] [--modes bf16,fp32]
"""

import argparse
import base64
import io
import random
import statistics
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from bench.training.rows import write
from bench.training.run import describe_machine, peer_python, run_json
from trainer.tests.make_tiny_vision import make_tiny_vision

SHAPE = {
    "text": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    },
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
    # One tile a picture: with more of them TRL's steps take minutes here.
    "processor": {"max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 512}},
}
# TRL learns the line break that templates write after an answer's end token, and Tunery does not: a model stops before
# it. Without it both learn the same tokens.
END = "<end_of_utterance>\n"
END_OF_ANSWER = "<end_of_utterance>{% if not (loop.last and message['role'] == 'assistant') %}{{ '\\n' }}{% endif %}"
COLOURS = ("red", "green", "blue", "yellow", "black", "purple")
NUMBERS = ("one", "two", "three", "four", "five")
BATCH, RATE = 4, 1e-3
# Passes over the rows: a picture is encoded in the first.
EPOCHS = (1, 3, 5)


def rows_of(count: int, seed: int) -> list[dict]:
    """Questions about pictures of a few squares of one colour, each picture its own."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        colour, squares = draw.choice(COLOURS), draw.randint(1, 5)
        image = Image.effect_noise((512, 384), 20).convert("RGB")
        canvas = ImageDraw.Draw(image)
        for place in draw.sample(range(12), squares):
            x, y = place % 4 * 128 + draw.randint(0, 40), place // 4 * 128 + draw.randint(0, 40)
            canvas.rectangle((x, y, x + 80, y + 80), fill=colour)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "How many squares are in this picture, and which colour do they have?"},
        ]
        answer = f"There {'is one square' if squares == 1 else f'are {NUMBERS[squares - 1]} squares'}, all {colour}."
        made.append({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]})
    return made


def ours(model: Path, rows: Path, *options: object) -> dict:
    given = ("--batch", BATCH, "--rate", RATE, "--max-length", 2048, *options)
    return run_json([sys.executable, "-m", "bench.training.ours", str(model), str(rows), *map(str, given)])


def trl(model: Path, rows: Path, *options: object) -> dict:
    given = ("--batch", BATCH, "--rate", RATE, *options)
    script = "bench/training/peer_trl_vision.py"
    return run_json([str(peer_python()), script, str(model), str(rows), *map(str, given)])


def speed(model: Path, folder: Path, modes: list[str], turns: int, steps: int) -> None:
    """Tunery's tokens of all epochs by their time and that of encoding the pictures, which it does once. TRL encodes
    them in each step, so that a few steps tell its speed.
    """
    rows = write(folder / "speed.jsonl", rows_of(BATCH * steps, 7))
    found: dict[str, list[float]] = {}
    for turn in range(turns):
        for mode in modes:
            result = trl(model, rows, "--mode", mode, "--out", folder / "trl", "--steps", 4)
            found.setdefault(f"TRL {mode}", []).append(result["tokens_per_second"])
        for epochs in EPOCHS:
            result = ours(model, rows, "--epochs", epochs, "--steps", epochs * steps)
            found.setdefault(f"Tunery in {epochs}", []).append(result["tokens_per_second"])
        encoding, total = result["encoding_seconds"], result["seconds"]
        line = ", ".join(f"{who} {values[-1]}" for who, values in found.items())
        print(f"turn {turn + 1}: {line}; encoding took {encoding} of the last {total} s", flush=True)
        if turn == 0:
            modes = [max(modes, key=lambda mode: found[f"TRL {mode}"][0])]
    best = statistics.median(found[f"TRL {modes[0]}"])
    for epochs in EPOCHS:
        us = statistics.median(found[f"Tunery in {epochs}"])
        print(f"epochs: {epochs}; Tunery {us} tokens/s, TRL ({modes[0]}) {best}: {us / best:.2f} times", flush=True)


def loss(model: Path, folder: Path, steps: int) -> None:
    """Trains both in float32 with the same rows in the same order; scores both results with the same code."""
    ratios: list[float] = []
    for seed in (1, 2, 3):
        rows, size = rows_of(BATCH * steps + 8, seed), ("--steps", steps, "--seed", seed)
        heldout = write(folder / "heldout.jsonl", rows[-8:])
        train = write(folder / "train.jsonl", rows[:-8])
        order = ours(model, train, *size, "--order")
        ordered = write(folder / "ordered.jsonl", [rows[index] for index in order])
        us = ours(model, train, *size, "--precision", "float32", "--heldout", heldout)
        peer = trl(model, ordered, *size, "--mode", "fp32", "--out", folder / "adapter", "--save")
        scored = ours(
            model, train, *size, "--precision", "float32", "--heldout", heldout, "--adapter", folder / "adapter"
        )
        ratios.append(us["heldout_loss"] / scored["heldout_loss"])
        print(
            f"seed {seed}: loss on 8 held-out rows: Tunery {us['heldout_loss']:.4f}, TRL {scored['heldout_loss']:.4f}; "
            f"of the first step {us['losses'][0]:.4f} and {peer['losses'][0]:.4f}, of the last {us['losses'][-1]:.4f} "
            f"and {peer['losses'][-1]:.4f}; TRL {peer['tokens_per_second']} tokens/s",
            flush=True,
        )
    print(f"loss after {steps} steps: Tunery / TRL {min(ratios):.4f} to {max(ratios):.4f}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--modes", default="bf16,fp32", help="of TRL; the best of them is what counts")
    parser.add_argument("--only", choices=["speed", "loss"])
    args = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_vision("idefics3", folder / "base", **SHAPE)
        template = model / "chat_template.jinja"
        template.write_text(template.read_text().replace(END, END_OF_ANSWER))
        if args.only in (None, "speed"):
            speed(model, folder, args.modes.split(","), args.turns, steps=8)
        if args.only in (None, "loss"):
            loss(model, folder, steps=4)


if __name__ == "__main__":
    main()
