"""A batch's sequences laid end to end, so that no computation goes into padding."""

from dataclasses import dataclass

import numpy as np
import torch

from trainer.model.attention import CPU, Layout, layout_of, on
from trainer.data.dataset import Sequence


@dataclass(frozen=True)
class Pack:
    """Inputs of one forward pass, on the device that computes it.

    `ids`, `positions`: int64 [1, tokens]. `shared`: tokens of the beginning that every document has in common, present once.
    `layout`: how attention lays the documents out. `chosen`: int64 [targets], positions whose next token is learned, `next_ids`.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    shared: int
    layout: Layout
    chosen: torch.Tensor
    next_ids: torch.Tensor


# Where passes are recorded a pack is filled up to the next of few sizes: by a quarter at most, a tenth as a rule.
STEPS_BELOW, SMALLEST = 8, 256


def size_for(tokens: int) -> int:
    """The next of those sizes: multiples of 256 up to 2,048, of 512 up to 4,096, and so on."""
    step = SMALLEST
    while tokens > STEPS_BELOW * step:
        step *= 2
    return -(-tokens // step) * step


@dataclass(frozen=True)
class Limits:
    """Bounds of one forward pass, for memory: activations grow with tokens, logits with targets times the vocabulary.
    """

    tokens: int = 8192
    targets: int = 2048
    documents: int | None = None


def split(sequences: list[Sequence], limits: Limits) -> list[list[Sequence]]:
    """Cuts a batch into groups that each fit into one pass; a sequence over a limit is a group of its own."""
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


def shared_beginning(sequences: list[Sequence]) -> int:
    """How many tokens all sequences begin with and none has to learn; each keeps at least one token of its own.

    Prompts of one dataset usually begin alike (the template's system message, an instruction). A causal model's states
    there are
    the same for all, so one computation serves the whole pack and its gradient is the sum of theirs.
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
    """One forward pass's inputs, on the device."""
    shared = shared_beginning(sequences) if share else 0
    ids, positions = [sequences[0].ids[:shared]], [np.arange(shared)]
    chosen, next_ids, lengths = [], [], []
    start = shared
    for sequence in sequences:
        own = len(sequence.ids) - shared
        targets = np.nonzero(sequence.trained)[0]
        chosen.append(targets - 1 - shared + start)
        next_ids.append(sequence.ids[targets])
        ids.append(sequence.ids[shared:])
        positions.append(np.arange(shared, len(sequence.ids)))
        lengths.append(own)
        start += own

    def joined(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    layout = layout_of(shared, lengths, device)
    ids, positions, chosen, next_ids = on(device, joined(ids), joined(positions), joined(chosen), joined(next_ids))
    return Pack(ids[None], positions[None], shared, layout, chosen, next_ids)
