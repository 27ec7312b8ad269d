"""Greedy answers and log-probabilities of given answers, without sampling or penalties."""

import torch

from trainer.runtime.errors import JobError

MAX_TOKENS = 64


@torch.inference_mode()
def greedy(model, prompt: list[int], end_tokens: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
    """The answer's tokens, including the end token."""
    answer: list[int] = []
    input_tokens, cache = prompt, None
    while len(answer) < max_tokens:
        output = model(input_ids=torch.tensor([input_tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        token = int(output.logits[0, -1].argmax())
        answer.append(token)
        if token in end_tokens:
            break
        input_tokens = [token]
    return answer


@torch.inference_mode()
def log_probabilities(model, prompt: list[int], answer: list[int]) -> list[float]:
    """The natural log-probability of each answer token after the prompt and the tokens before it."""
    logits = (
        model(input_ids=torch.tensor([prompt + answer[:-1]]), use_cache=False, logits_to_keep=len(answer))
        .logits[0]
        .float()
    )
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return rounded(chosen)


def rounded(logarithms: torch.Tensor) -> list[float]:
    """Raises JobError("adapter_invalid") if one is not finite."""
    if not bool(logarithms.isfinite().all()):
        raise JobError("adapter_invalid", "The model computes no numbers (NaN or infinite): its weights are too large.")
    return [round(float(value), 5) for value in logarithms]
