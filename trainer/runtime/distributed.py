"""Several processes that train one model together, one a GPU, as torchrun starts them. A process alone exchanges
nothing.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

# The first process evaluates and writes while the others wait.
LONGEST_WAIT = timedelta(hours=6)


class Ranks:
    def __init__(self) -> None:
        self.rank, self.count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    @property
    def first(self) -> bool:
        """Whether this is the process that evaluates, writes and tells."""
        return self.rank == 0

    def join(self, device: torch.device) -> None:
        if self.count == 1:
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)

    def share(self, lengths: list[int]) -> list[int]:
        """Which of a batch's sequences are this process's: dealt out the longest first, so that all have about as many
        tokens.
        """
        if self.count == 1:
            return list(range(len(lengths)))
        tokens, dealt = [0] * self.count, [[] for _ in range(self.count)]
        for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
            least = tokens.index(min(tokens))
            tokens[least] += lengths[index]
            dealt[least].append(index)
        return sorted(dealt[self.rank])

    def add_up(
        self, parameters: list[torch.nn.Parameter], sums: list[float], mine: list[int], total: int
    ) -> list[float]:
        """Adds the gradients of all processes into each one's, and returns all `total` sums of losses; `sums` are those
        of `mine`.
        """
        if self.count == 1:
            return sums
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        for gradient, added in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(added)
        every = torch.zeros(total, dtype=torch.float64, device=flat.device)
        every[mine] = torch.tensor(sums, dtype=torch.float64, device=flat.device)
        dist.all_reduce(every)
        return every.tolist()

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any process says so; all hear the same."""
        if self.count == 1:
            return flag
        said = torch.tensor(float(flag), device=device)
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def of_first(self, flag: bool, device: torch.device) -> bool:
        """What the first process says; the others' word is not asked."""
        return self.any(flag and self.first, device)
