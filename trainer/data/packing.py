"""Packs a batch's sequences end to end, so that nothing is computed for padding."""

from dataclasses import dataclass

import numpy as np
import torch

from trainer.data.dataset import Sequence
from trainer.data.layout import CPU, Layout, layout_of, to_device


@dataclass(frozen=True)
class Pack:
    """Inputs of one forward pass, on its device.

    `ids`, `positions`: int64 [1, tokens]. `shared`: length of the prefix that all documents share, present once.
    `layout`: the documents' layout for attention. `chosen`: int64 [targets], positions whose next token is learned;
    `next_ids`: int64 [targets], those tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    shared: int
    layout: Layout
    chosen: torch.Tensor
    next_ids: torch.Tensor


# With CUDA graphs a pack is padded to one of few sizes: by a quarter at most, typically a tenth.
STEPS_PER_DOUBLING, SMALLEST = 8, 256


def padded_size(tokens: int) -> int:
    """The next of those sizes: multiples of 256 up to 2,048, of 512 up to 4,096, and so on."""
    step = SMALLEST
    while tokens > STEPS_PER_DOUBLING * step:
        step *= 2
    return -(-tokens // step) * step


@dataclass(frozen=True)
class Limits:
    """Memory bounds of one forward pass: activations grow with tokens, logits with targets times the vocabulary."""

    tokens: int = 8192
    targets: int = 2048
    documents: int | None = None


def split(sequences: list[Sequence], limits: Limits) -> list[list[Sequence]]:
    """Splits a batch into groups that each fit into one pass; a sequence over a limit is its own group."""
    groups: list[list[Sequence]] = []
    tokens = targets = 0
    for sequence in sequences:
        tokens += len(sequence.ids)
        targets += sequence.targets
        full = groups and len(groups[-1]) == limits.documents
        if not groups or full or tokens > limits.tokens or targets > limits.targets:
            groups.append([])
            tokens, targets = len(sequence.ids), sequence.targets
        groups[-1].append(sequence)
    return groups


def shared_prefix(sequences: list[Sequence]) -> int:
    """The length of the common prefix without learned tokens; every sequence keeps at least one token of its own.

    Prompts of one dataset usually start alike (the template's system message, an instruction). A causal model's states
    there are the same for all, so one computation serves the whole pack and its gradient is the sum of theirs.
    """
    if len(sequences) < 2:
        return 0
    limit = min(min(len(sequence.ids) - 1, int(np.argmax(sequence.trained)) - 1) for sequence in sequences)
    first = sequences[0].ids
    for other in sequences[1:]:
        limit = max(limit, 0)
        differing = np.nonzero(first[:limit] != other.ids[:limit])[0]
        limit = int(differing[0]) if len(differing) else limit
    return max(limit, 0)


def pack(sequences: list[Sequence], device: torch.device = CPU, share: bool = True) -> Pack:
    """The inputs of one forward pass, on the device."""
    shared = shared_prefix(sequences) if share else 0
    ids, positions = [sequences[0].ids[:shared]], [np.arange(shared)]
    chosen, next_ids, lengths = [], [], []
    start = shared
    for sequence in sequences:
        own_length = len(sequence.ids) - shared
        targets = np.nonzero(sequence.trained)[0]
        chosen.append(targets - 1 - shared + start)
        next_ids.append(sequence.ids[targets])
        ids.append(sequence.ids[shared:])
        positions.append(np.arange(shared, len(sequence.ids)))
        lengths.append(own_length)
        start += own_length

    def concatenated(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    layout = layout_of(shared, lengths, device)
    ids, positions, chosen, next_ids = to_device(
        device, concatenated(ids), concatenated(positions), concatenated(chosen), concatenated(next_ids)
    )
    return Pack(ids[None], positions[None], shared, layout, chosen, next_ids)
