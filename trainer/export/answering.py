"""Greedy answers and log-probabilities of given answers, without sampling or penalties."""

from typing import Any

import numpy as np
import torch

from trainer.data.dataset import Sequence
from trainer.data.packing import pack
from trainer.model.model import Model
from trainer.model.vision import inputs_of
from trainer.runtime.errors import JobError

MAX_TOKENS = 64


@torch.inference_mode()
def greedy(
    model: Model, prompt: list[int] | Sequence, end_tokens: list[int], max_tokens: int = MAX_TOKENS
) -> tuple[list[int], list[float]]:
    """The answer's tokens, including the end token, and how far each one's logit is above the second highest. `prompt`:
    a sequence where the model sees pictures.
    """
    answer: list[int] = []
    margins: list[float] = []
    inputs, cache = _inputs(model, prompt), None
    while len(answer) < max_tokens:
        output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        highest, tokens = output.logits[0, -1].float().topk(2)
        token = int(tokens[0])
        answer.append(token)
        margins.append(round(float(highest[0] - highest[1]), 5))
        if token in end_tokens:
            break
        positions = inputs.get("position_ids")
        inputs = {"input_ids": torch.tensor([[token]])}
        if positions is not None:
            inputs["position_ids"] = torch.full((*positions.shape[:-1], 1), int(positions.max()) + 1)
    return answer, margins


def _inputs(model: Model, tokens: list[int] | Sequence) -> dict[str, Any]:
    if isinstance(tokens, list):
        return {"input_ids": torch.tensor([tokens])}
    packed = pack([tokens])
    inputs = {**inputs_of(model, packed), "position_ids": packed.positions}
    if packed.layout.mutual is not None:
        # transformers' own attention reads from them which tokens are pictures.
        inputs["token_type_ids"] = (packed.layout.mutual > 0).long()[None]
    return inputs


def followed_by(prompt: list[int] | Sequence, answer: list[int]) -> Sequence:
    """The prompt with an answer, whose tokens are those to score."""
    if isinstance(prompt, list):
        prompt = Sequence(np.array(prompt, dtype=np.int32), np.zeros(len(prompt), dtype=bool))
    return prompt.followed_by(Sequence(np.array(answer, dtype=np.int32), np.ones(len(answer), dtype=bool)))


@torch.inference_mode()
def log_probabilities(model: Model, prompt: list[int] | Sequence, answer: list[int]) -> list[float]:
    """The natural log-probability of each answer token after the prompt and the tokens before it."""
    tokens = prompt + answer[:-1] if isinstance(prompt, list) else followed_by(prompt, answer[:-1])
    logits = model(**_inputs(model, tokens), use_cache=False, logits_to_keep=len(answer)).logits[0].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return rounded(chosen)


def rounded(logarithms: torch.Tensor) -> list[float]:
    """Log-probabilities [tokens] as stored, to five digits. Raises JobError("adapter_invalid") if one is not finite."""
    if not bool(logarithms.isfinite().all()):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return [round(float(value), 5) for value in logarithms]
