"""Whether rows that are packed together train as they do alone: `python tests/families/packing.py FOLDER [NAME…]` says
so for tiny checkpoints (checkpoints.py) of these names, or of all.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from transformers.utils import logging

from tests.families.checkpoints import FAMILIES, write
from trainer.data.dataset import Sequence
from trainer.data.packing import pack
from trainer.model.load import load_base
from trainer.model.model import Model
from trainer.model.position_mixers import keeps_apart
from trainer.run.evaluate import losses
from trainer.runtime.spec import Base, ModelSpec

CPU = torch.device("cpu")
# Tokens of each row after what all have in common; windows and chunks of the checkpoints have 16 tokens.
PREFIX, LENGTHS = 7, (5, 30, 41, 1)
# Relative difference of losses and of each weight's gradient, in float32.
TOLERANCE = 1e-3


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """The base of a checkpoint: in float32 as full training loads it."""
    method = "full" if dtype == torch.float32 else "lora"
    spec = ModelSpec(
        job_id="job", base=Base("family", str(folder)), method=method, lora=None, start=None, threads=1, converters=""
    )
    return load_base(spec, CPU, dtype)


def rows() -> list[Sequence]:
    """Rows of random tokens that begin alike. Each learns its last tokens."""
    random = np.random.default_rng(0)
    start = random.integers(300, 1000, PREFIX)
    made = []
    for length in LENGTHS:
        ids = np.concatenate([start, random.integers(300, 1000, length)]).astype(np.int32)
        trained = np.arange(len(ids)) >= max(PREFIX, len(ids) - 12)
        made.append(Sequence(ids, trained))
    return made


def packed(model: Model, sequences: list[Sequence]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of each learned token and the gradients of their sum, in one pass."""
    found = losses(model, pack(sequences))
    return found.detach(), _gradients(model, found.sum())


def alone(model: Model, sequences: list[Sequence]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same by transformers, row by row, with the attention that it has for every family."""
    text = model.config.get_text_config()
    before = model.config._attn_implementation, text._attn_implementation
    model.set_attn_implementation({"": "eager", "text_config": "eager"})
    found = []
    for sequence in sequences:
        ids = torch.as_tensor(sequence.ids.astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1][torch.as_tensor(sequence.trained[1:])]
        found.append(
            torch.nn.functional.cross_entropy(
                logits, ids[0, 1:][torch.as_tensor(sequence.trained[1:])], reduction="none"
            )
        )
    model.set_attn_implementation({"": before[0], "text_config": before[1]})
    joint = torch.cat(found)
    return joint.detach(), _gradients(model, joint.sum())


def _gradients(model: Model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def difference(folder: Path) -> tuple[Model, float, str]:
    """The model, and the largest relative difference between a pack and its rows alone, and where it is: in the losses,
    or in a weight's gradient.
    """
    torch.manual_seed(0)
    model, sequences = load(folder), rows()
    if not keeps_apart(model):
        return model, 0.0, getattr(model, "apart_problem", "documents mix")
    (loss, gradients), (expected_loss, expected) = packed(model, sequences), alone(model, sequences)
    found = [("the losses", float((loss - expected_loss).abs().max() / expected_loss.abs().max()))]
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name in expected.keys() | gradients.keys():
        if name not in expected or name not in gradients:
            found.append((f"{name}, which has a gradient in one of them alone", 1.0))
            continue
        # Gradients that are zero but for rounding have no direction.
        size = max(float(expected[name].norm()), 1e-5 * largest)
        found.append((name, float((gradients[name] - expected[name]).norm()) / size))
    where, most = max(found, key=lambda pair: pair[1])
    return model, most, where


def packing_cell(folder: Path) -> str:
    """What the table of families says of packing: `yes`, `one row a pass`, or what is wrong."""
    model, most, where = difference(folder)
    if not keeps_apart(model):
        return f"one row a pass ({where})"
    return "yes" if most < TOLERANCE else f"a pack differs from its rows by {most:.2g} in {where}"


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder, *names = sys.argv[1:]
    for name in names or FAMILIES:
        path = Path(folder) / name
        if not path.exists():
            write(name, path)
        try:
            print(f"{name}: {packing_cell(path)}", flush=True)
        except Exception as problem:
            print(f"{name}: {type(problem).__name__}: {problem}", flush=True)
