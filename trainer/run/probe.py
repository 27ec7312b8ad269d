"""What training changed, told in a few rows: how likely their learned tokens are to the result and to what it was made
from.

The service asks its engine the same of what it serves. Where the two changes differ, something else is served than was
trained.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer.data.dataset import LONGEST_EXAMPLE, Example, Sequence
from trainer.data.packing import pack
from trainer.run.evaluate import forward
from trainer.runtime.errors import JobError

MOST_TARGETS = 64


def shortened(example: Example) -> Sequence:
    """Its first learned tokens; what comes after them is not needed to score them."""
    targets = np.nonzero(example.sequence.trained[:LONGEST_EXAMPLE])[0][:MOST_TARGETS]
    end = int(targets[-1]) + 1
    trained = np.zeros(end, dtype=bool)
    trained[targets] = True
    return Sequence(example.sequence.ids[:end], trained)


@torch.no_grad()
def log_probabilities(model, examples: list[Example], device: torch.device) -> list[list[float]]:
    """The natural logarithm of the probability of each learned token, row by row. Raises JobError("adapter_invalid")
    where it is none.
    """
    was_training = model.training
    model.eval()
    told = []
    for example in examples:
        packed = pack([shortened(example)], device)
        logits = forward(model, packed)
        told.append([round(-float(value), 5) for value in cross_entropy(logits, packed.next_ids, reduction="none")])
    model.train(was_training)
    if not all(math.isfinite(value) for row in told for value in row):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return told


def write(path: Path, examples: list[Example], tuned: list[list[float]], origin: list[list[float]]) -> Path:
    """`whole` rows end with the token that ends an answer."""
    rows = []
    for example, after, before in zip(examples, tuned, origin, strict=True):
        sequence = shortened(example)
        shown = [{"role": message["role"], "content": message["content"]} for message in example.prompt]
        targets = np.nonzero(sequence.trained)[0].tolist()
        whole = sequence.targets == example.sequence.targets
        tokens = sequence.ids.tolist()
        rows.append(
            {"prompt": shown, "tokens": tokens, "targets": targets, "whole": whole, "tuned": after, "origin": before}
        )
    path.write_text(json.dumps({"rows": rows}))
    return path
