"""Writes what the bench of pictures serves: a checkpoint of SmolVLM-256M's shape and random weights, in a models dir
with its projector (`bench/eye`) and without (`bench/blind`), projectors for llama-server, and pictures.

python -m bench.serving.make_eye OUT_DIR PICTURES
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

from bench.training.vision import SHAPE
from trainer.runtime.converters import run_converter
from trainer.tests.make_tiny_vision import make_tiny_vision

ROOT = Path(__file__).parents[2]
CONVERTERS = ROOT / ".local/llama/source"
# As SmolVLM-256M-Instruct reads pictures: in tiles of 512 pixels of a side of 2,048, and as a whole.
PROCESSOR = {"max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 2048}}
# What llama-server may compute a projector in.
FORMS = ("q8_0", "bf16", "f16")


def main(out: Path, pictures: int) -> None:
    checkpoint = make_tiny_vision("smolvlm", out / "checkpoint", **{**SHAPE, "processor": PROCESSOR})
    eye, blind = out / "models/bench/eye", out / "models/bench/blind"
    arguments = ["--id", "bench/eye", "--out", eye, "--source", checkpoint, "--converters", CONVERTERS]
    prepare = [sys.executable, "-m", "trainer.cli.prepare_base", "folder", *map(str, arguments), "--outtype", "q8_0"]
    subprocess.run(prepare, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    blind.mkdir(parents=True)
    for name in ("model.gguf", "hf"):
        (blind / name).symlink_to(eye / name)
    facts = json.loads((eye / "model.json").read_text())
    facts = {name: value for name, value in facts.items() if not name.startswith("projector")}
    (blind / "model.json").write_text(json.dumps(facts | {"id": "bench/blind", "kind": "text"}))
    for form in FORMS:
        file = str(out / f"mmproj-{form}.gguf")
        run_converter(
            CONVERTERS, "convert_hf_to_gguf.py", [str(checkpoint), "--mmproj", "--outfile", file, "--outtype", form]
        )
    for index in range(pictures):
        image = Image.effect_noise((1024, 768), 60 + index % 40).convert("RGB")
        image.save(out / f"{index}.jpg", quality=90)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main(Path(sys.argv[1]), int(sys.argv[2]))
