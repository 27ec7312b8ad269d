# pyright: basic
# torch leaves the types of its collective operations open.
"""Data-parallel training: several processes, one for each GPU, as torchrun starts them. A single process communicates
nothing.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

# Other processes wait while the first one evaluates and writes.
LONGEST_WAIT = timedelta(hours=6)


class Distributed:
    """The place of this process among those that train together, and what it exchanges with them."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    @classmethod
    def alone(cls) -> "Distributed":
        """A process that communicates with no other, for what one of several does by itself."""
        alone = cls()
        alone.rank, alone.world = 0, 1
        return alone

    @property
    def is_first(self) -> bool:
        """Whether this process (rank 0) evaluates, writes files and reports."""
        return self.rank == 0

    def init_process_group(self, device: torch.device) -> None:
        """Connects the processes: NCCL between GPUs, gloo between CPUs."""
        if self.world == 1:
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)

    def shard(self, lengths: list[int]) -> list[int]:
        """The indices of this rank's sequences of a batch: dealt longest first, so that all ranks get about as many
        tokens.
        """
        if self.world == 1:
            return list(range(len(lengths)))
        tokens = [0] * self.world
        assigned: list[list[int]] = [[] for _ in range(self.world)]
        for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
            least = tokens.index(min(tokens))
            tokens[least] += lengths[index]
            assigned[least].append(index)
        return sorted(assigned[self.rank])

    def all_reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Sums the gradients of all ranks in place."""
        if self.world == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        for gradient, added in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(added)

    def gather(
        self, table: list[list[float]], own_indices: list[int], total: int, columns: int, device: torch.device
    ) -> list[list[float]]:
        """All `total` lines of a table with `columns` columns; `table` has those at `own_indices`."""
        if self.world == 1:
            return table
        all_lines = torch.zeros(total, columns, dtype=torch.float64, device=device)
        if own_indices:
            all_lines[own_indices] = torch.tensor(table, dtype=torch.float64, device=device)
        dist.all_reduce(all_lines)
        return all_lines.tolist()

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a value, of any shape, over all ranks; in place."""
        if self.world > 1:
            dist.all_reduce(value)
        return value

    def any_rank(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any rank; the result is the same on all."""
        if self.world == 1:
            return flag
        flagged = torch.tensor(float(flag), device=device)
        dist.all_reduce(flagged, dist.ReduceOp.MAX)
        return bool(flagged)

    def from_first(self, flag: bool, device: torch.device) -> bool:
        """The flag of rank 0, on every rank."""
        return self.any_rank(flag and self.is_first, device)
