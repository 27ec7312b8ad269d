"""What the trainer alone says of a family, with a checkpoint whose vocabulary is small: `python -m tests.families.cells
NAME FOLDER [MODEL_JSON]` prints cells of the table as JSON. MODEL_JSON: of the base as it was added.
"""

import json
import sys
from pathlib import Path

import torch
from transformers.utils import logging

from tests.families import packing
from tests.families.checkpoints import QUANTIZED, write
from trainer.model import experts, fast_layers, fast_lora
from trainer.model.load import with_adapter
from trainer.runtime.hyperparameters import Lora
from trainer.runtime.spec import Base, ModelSpec


def fast_layers_cell(folder: Path, described: dict) -> str:
    """Which parts of the trainer's own take the place of transformers' in a training with an adapter: `yes` if whole
    layers do.
    """
    lora = Lora(
        r=8,
        alpha=16.0,
        dropout=0.0,
        target_modules=described["linear_modules"],
        experts="expert_weights" in described,
    )
    base = Base("family", str(folder))
    spec = ModelSpec(job_id="job", base=base, method="lora", lora=lora, start=None, threads=1, converters="")
    replaced = {}
    for part in (fast_layers, fast_lora, experts):
        part.install = _recorded(part.install, part.__name__.rpartition(".")[2], replaced)
    with_adapter(packing.load(folder, torch.bfloat16), spec)
    if replaced["fast_layers" if "fast_layers" in replaced else "experts"] is True:
        return "yes"
    mixtures = " and of mixtures" if replaced["experts"] else ""
    return f"Those of adapters{mixtures} alone: layers compute something else than the trainer's own."


def _recorded(install, name: str, results: dict):
    def recorded(*arguments):
        results[name] = install(*arguments)
        return results[name]

    return recorded


def attempt(cell, *arguments) -> str:
    """A cell, or why there is none."""
    try:
        return cell(*arguments)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:300]


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    name, checkpoint, *rest = sys.argv[1:]
    # Adding a quantized base makes it one of its plain family.
    write(name.rpartition("_")[0] if name in QUANTIZED else name, Path(checkpoint))
    architecture = json.loads((Path(checkpoint) / "config.json").read_text())["model_type"]
    cells = {"architecture": architecture, "packing": attempt(packing.packing_cell, Path(checkpoint))}
    if rest:
        cells["fast_layers"] = attempt(fast_layers_cell, Path(checkpoint), json.loads(Path(rest[0]).read_text()))
    print(json.dumps(cells))
