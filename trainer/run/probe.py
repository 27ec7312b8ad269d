"""The probe: log-probabilities of a few rows' learned tokens, under the result and under the model that it was made
from.

The service asks its engine for the same numbers of the served model. If the two changes differ, the engine does not
serve what was trained.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer.data.content import as_sent, pictures_of
from trainer.data.dataset import Example, Sequence, shown_of
from trainer.data.packing import Limits, pack, split
from trainer.data.pictures import url_of
from trainer.model.model import Model
from trainer.model.position_mixers import keeps_apart
from trainer.model.served import as_served
from trainer.run.evaluate import forward
from trainer.runtime.errors import JobError

MOST_TARGETS = 64
# Tokens of one pass: less than a batch of the training has, as the optimizer's memory is still taken.
PASS = Limits(tokens=2048, targets=256)
# Most characters of an example's pictures: four are sent to the engine at once.
MOST_PICTURE_CHARACTERS = 4_000_000


def shortened(example: Example) -> Sequence:
    """The example cut after its first learned tokens; later tokens do not affect their scores."""
    targets = np.nonzero(shown_of(example.sequence).trained)[0][:MOST_TARGETS]
    end = int(targets[-1]) + 1
    trained = np.zeros(end, dtype=bool)
    trained[targets] = True
    return replace(example.sequence.part(0, end), trained=trained)


def is_sendable(example: Example) -> bool:
    """Whether its pictures are small enough to be sent to the engine."""
    return sum(len(url_of(picture)) for picture in pictures_of(example.prompt)) <= MOST_PICTURE_CHARACTERS


@torch.no_grad()
def log_probabilities(model: Model, examples: list[Example], device: torch.device) -> list[list[float]]:
    """The natural log-probability of each learned token under the model as it will be served, row by row. Raises
    JobError("adapter_invalid") if one is not finite.
    """
    was_training = model.training
    model.eval()
    limits = PASS if keeps_apart(model) else replace(PASS, documents=1)
    row_log_probabilities = []
    with as_served(model):
        for group in split([shortened(example) for example in examples], limits):
            packed = pack(group, device)
            losses = cross_entropy(forward(model, packed), packed.next_ids, reduction="none")
            for row in losses.split([sequence.targets for sequence in group]):
                row_log_probabilities.append([round(-value, 5) for value in row.tolist()])
    model.train(was_training)
    if not all(math.isfinite(value) for row in row_log_probabilities for value in row):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return row_log_probabilities


def write(path: Path, examples: list[Example], tuned: list[list[float]], base: list[list[float]]) -> Path:
    """Writes the probe's rows. `whole` rows end with the token that ends an answer.

    Contents with pictures are parts as in OpenAI's API, with data URLs; `tokens` have -1 for each vector of a picture.
    """
    rows = []
    for example, after, before in zip(examples, tuned, base, strict=True):
        sequence = shortened(example)
        prompt = [{"role": message["role"], "content": as_sent(message["content"])} for message in example.prompt]
        targets = np.nonzero(sequence.trained)[0].tolist()
        whole = sequence.targets == example.sequence.targets
        tokens = sequence.comparable()
        rows.append(
            {"prompt": prompt, "tokens": tokens, "targets": targets, "whole": whole, "tuned": after, "origin": before}
        )
    path.write_text(json.dumps({"rows": rows}))
    return path
