"""What a model answers: the likeliest token each time, and how likely given answers are to it. No sampling, no penalties."""

import json
import math
import os
from pathlib import Path

import torch

from trainer.errors import JobError
from trainer.files import sync

VERSION = 1
MOST_TOKENS = 64


@torch.inference_mode()
def greedy(model, prompt: list[int], ends: list[int], most: int = MOST_TOKENS) -> list[int]:
    """The answer's tokens, with the one that ended it."""
    answer: list[int] = []
    given, cache = prompt, None
    while len(answer) < most:
        told = model(input_ids=torch.tensor([given]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = told.past_key_values
        token = int(told.logits[0, -1].argmax())
        answer.append(token)
        if token in ends:
            break
        given = [token]
    return answer


@torch.inference_mode()
def log_probabilities(model, prompt: list[int], answer: list[int]) -> list[float]:
    """The natural logarithm of each token's probability after the prompt and the tokens before it."""
    logits = model(input_ids=torch.tensor([prompt + answer[:-1]]), use_cache=False, logits_to_keep=len(answer)).logits[0].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return rounded(chosen)


def rounded(logarithms: torch.Tensor) -> list[float]:
    """Raises JobError("adapter_invalid") where one is none."""
    if not bool(logarithms.isfinite().all()):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return [round(float(value), 5) for value in logarithms]


def read(path: Path) -> dict | None:
    """The answers in a file; null where there is none, or one of another version."""
    try:
        found = json.loads(path.read_text())
        return found if found["version"] == VERSION and found["rows"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, rows: list[dict], **more: object) -> None:
    """The whole file or none: what a killed process leaves is never read as answers."""
    for row in rows:
        if not all(math.isfinite(value) for value in row["log_probabilities"]):
            raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite).")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w") as file:
            file.write(json.dumps({"version": VERSION, **more, "rows": rows}, allow_nan=False))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)
