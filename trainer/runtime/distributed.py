# pyright: basic
# torch leaves the types of its collective operations open.
"""Data-parallel training: several processes, one for each GPU, as torchrun starts them. A single process communicates
nothing.
"""

import os
import select
import threading
import time
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from trainer.runtime.protocol import EXIT_FAILED, Protocol

Value = TypeVar("Value")

# Other processes wait while the first one evaluates and writes.
LONGEST_WAIT = timedelta(hours=6)
# Between looks at the other processes, for those that end in the same moment, and to tell of them.
LOOK_SECONDS, SETTLE_SECONDS, TELL_SECONDS = 0.5, 0.5, 2.0


class Distributed:
    """The place of this process among those that train together, and what it exchanges with them."""

    def __init__(self, sharded: bool = False) -> None:
        """`sharded`: the processes share the weights, so every pass of the model needs all of them."""
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.sharded = sharded and self.world > 1
        self._parted = threading.Event()

    @classmethod
    def alone(cls) -> "Distributed":
        """A process that communicates with no other, for what one of several does by itself."""
        alone = cls()
        alone.rank, alone.world, alone.sharded = 0, 1, False
        return alone

    @property
    def takes_part(self) -> bool:
        """Whether this process computes what the first one evaluates."""
        return self.is_first or self.sharded

    @property
    def is_first(self) -> bool:
        """Whether this process (rank 0) evaluates, writes files and reports."""
        return self.rank == 0

    def init_process_group(self, device: torch.device) -> None:
        """Connects the processes: NCCL between GPUs, gloo between CPUs."""
        if self.world == 1:
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)

    def watch(self, protocol: Protocol) -> None:
        """From now on this process ends if another one on its machine does: it would wait for it for hours."""
        if self.world == 1:
            return
        here = os.environ.get("GROUP_RANK", "0")
        members: list[Any] = [None] * self.world
        dist.all_gather_object(members, (here, os.getpid()))
        # Linux since 5.3.
        if not hasattr(os, "pidfd_open"):
            return
        others = {
            os.pidfd_open(pid): rank for rank, (place, pid) in enumerate(members) if rank != self.rank and place == here
        }
        watching = threading.Thread(target=self._end_with, args=(others, protocol), daemon=True)
        watching.start()
        # What fails then, fails for want of the other: the thread tells of it, and ends this process.
        protocol.before_failure = lambda: watching.join(TELL_SECONDS)

    def _end_with(self, others: dict[int, int], protocol: Protocol) -> None:
        ended = select.poll()
        for other in others:
            ended.register(other, select.POLLIN)
        while not ended.poll(LOOK_SECONDS * 1000):
            if self._parted.is_set():
                return
        time.sleep(SETTLE_SECONDS)
        if self._parted.is_set():
            return
        gone = sorted(others[other] for other, _ in ended.poll(0))
        if self.rank == min(set(range(self.world)) - set(gone)):
            which = ", ".join(str(rank + 1) for rank in gone)
            protocol.emit_for_all(
                "warning",
                f"Of the {self.world} processes that train together, number {which} ended before its work was done, so "
                "all were ended.",
                code="process_lost",
            )
        os._exit(EXIT_FAILED)

    def part(self) -> None:
        """Waits for all processes; from now on each may end before the others."""
        if self.world > 1 and not self._parted.is_set():
            dist.barrier()
            self._parted.set()

    def same(self, value: Value) -> Value:
        """What the first process has, on each that shares the weights: all must decide alike."""
        if not self.sharded:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def shard(self, lengths: list[int], rank: int | None = None) -> list[int]:
        """The indices of a rank's sequences of a batch, by default of this one's: dealt longest first, so that all
        ranks get about as many tokens.
        """
        if self.world == 1:
            return list(range(len(lengths)))
        tokens = [0] * self.world
        assigned: list[list[int]] = [[] for _ in range(self.world)]
        for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
            least = tokens.index(min(tokens))
            tokens[least] += lengths[index]
            assigned[least].append(index)
        return sorted(assigned[self.rank if rank is None else rank])

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
