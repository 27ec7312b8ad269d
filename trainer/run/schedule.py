"""The order of rows and the learning rate, as functions of the step alone: a resumed run needs no state for them."""

import math
import random


def order_of(epoch: int, rows: int, seed: int) -> list[int]:
    """The order of the rows in an epoch (counted from 0)."""
    order = list(range(rows))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def learning_rate(step: int, steps_total: int, peak: float, warmup_ratio: float, scheduler: str) -> float:
    """The learning rate of a step (counted from 0): linear warm-up, then cosine or linear decay to 0, or constant.

    Cosine without restarts: Loshchilov and Hutter, "SGDR", 2016 (arXiv 1608.03983).
    """
    warmup = math.ceil(steps_total * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    share = (step - warmup) / max(1, steps_total - warmup)
    if scheduler == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * share))
    return peak * (1 - share) if scheduler == "linear" else peak
