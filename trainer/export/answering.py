"""What a model answers: the likeliest token each time, and how likely given answers are to it. No sampling, no
penalties.
"""

import torch

from trainer.runtime.errors import JobError

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
    logits = (
        model(input_ids=torch.tensor([prompt + answer[:-1]]), use_cache=False, logits_to_keep=len(answer))
        .logits[0]
        .float()
    )
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return rounded(chosen)


def rounded(logarithms: torch.Tensor) -> list[float]:
    """Raises JobError("adapter_invalid") where one is none."""
    if not bool(logarithms.isfinite().all()):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return [round(float(value), 5) for value in logarithms]
