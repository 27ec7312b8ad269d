"""Packs a batch's sequences end to end, so that nothing is computed for padding."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from trainer.data.dataset import Row, Sequence
from trainer.data.layout import CPU, Layout, layout_of, to_device, with_mutual

Part = TypeVar("Part", Sequence, Row)


@dataclass(frozen=True)
class Pack:
    """Inputs of one forward pass, on its device.

    `ids`, `positions`: int64 [1, tokens]; multimodal rotary positions are [3, 1, tokens]. `shared`: tokens of the
    prefixes that documents share, present once. `layout`: the documents' layout for attention. `chosen`: int64
    [targets], positions whose next token is learned; `next_ids`: int64 [targets], those tokens. `places`, `vectors`:
    int64 [vectors], the positions where vectors of pictures are, and their numbers; None without pictures.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    shared: int
    layout: Layout
    chosen: torch.Tensor
    next_ids: torch.Tensor
    places: torch.Tensor | None = None
    vectors: torch.Tensor | None = None


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


def split(parts: list[Part], limits: Limits) -> list[list[Part]]:
    """Splits the sequences or rows of a batch into groups that each fit into one pass; one over a limit is its own
    group.
    """
    groups: list[list[Part]] = []
    tokens = targets = 0
    for part in parts:
        tokens += part.tokens
        targets += part.targets
        full = groups and len(groups[-1]) == limits.documents
        if not groups or full or tokens > limits.tokens or targets > limits.targets:
            groups.append([])
            tokens, targets = part.tokens, part.targets
        groups[-1].append(part)
    return groups


def shared_prefix(sequences: list[Sequence]) -> int:
    """The length of the common prefix without learned tokens; every sequence keeps at least one token of its own.

    Prompts of one dataset usually start alike (the template's system message, an instruction). A causal model's states
    there are the same for all, so one computation serves the whole pack and its gradient is the sum of theirs. So are
    those in a picture whose vectors attend to each other: two pictures differ from their first vector on, and text
    follows each.
    """
    if len(sequences) < 2:
        return 0
    limit = min(min(len(sequence.ids) - 1, int(np.argmax(sequence.trained)) - 1) for sequence in sequences)
    first = sequences[0].ids
    for other in sequences[1:]:
        limit = max(limit, 0)
        differs = first[:limit] != other.ids[:limit]
        # The tokens of two pictures are the same, their vectors are not.
        if sequences[0].vectors is not None and other.vectors is not None:
            differs |= sequences[0].vectors[:limit] != other.vectors[:limit]
        differing = np.nonzero(differs)[0]
        limit = int(differing[0]) if len(differing) else limit
    return max(limit, 0)


def _prefixes(sequences: list[Sequence], together: int) -> list[int]:
    """The lengths of the prefixes that are worth sharing: one of all sequences, or one of each `together`."""
    whole = shared_prefix(sequences)
    if together == 1 or together == len(sequences):
        return [whole]
    own = [shared_prefix(sequences[start : start + together]) for start in range(0, len(sequences), together)]
    return own if sum(own) * (together - 1) > whole * (len(sequences) - 1) else [whole]


def pack(sequences: list[Sequence], device: torch.device = CPU, share: bool = True, together: int = 1) -> Pack:
    """The inputs of one forward pass, on the device.

    `together`: how many consecutive sequences have one prompt, which is then computed once.
    """
    prefixes = _prefixes(sequences, together) if share else [0]
    sharing = len(sequences) // len(prefixes)
    parts = [(sequences[index * sharing], 0, length) for index, length in enumerate(prefixes)]
    targets_at: list[np.ndarray] = []
    target_ids: list[np.ndarray] = []
    lengths: list[int] = []
    start = sum(prefixes)
    for index, sequence in enumerate(sequences):
        prefix = prefixes[index // sharing]
        targets = np.nonzero(sequence.trained)[0]
        targets_at.append(targets - 1 - prefix + start)
        target_ids.append(sequence.ids[targets])
        parts.append((sequence, prefix, len(sequence.ids)))
        lengths.append(len(sequence.ids) - prefix)
        start += lengths[-1]

    def concatenated(arrays: list[np.ndarray], axis: int = 0) -> torch.Tensor:
        return torch.as_tensor(np.concatenate(arrays, axis=axis).astype(np.int64))

    layout = layout_of(prefixes, lengths, device)
    if any(sequence.is_mutual for sequence in sequences):
        layout = with_mutual(layout, concatenated([_mutual(*part) for part in parts]).to(device))
    three = any(sequence.positions is not None for sequence in sequences)
    positions = concatenated([_positions(*part, three) for part in parts], axis=-1)
    vectors = concatenated([_vectors(*part) for part in parts])
    places = torch.nonzero(vectors >= 0)[:, 0]
    flat, *indices = to_device(
        device,
        positions.flatten(),
        concatenated([sequence.ids[begin:end] for sequence, begin, end in parts]),
        concatenated(targets_at),
        concatenated(target_ids),
        places,
        vectors[places],
    )
    ids, chosen, next_ids, *pictures = indices
    return Pack(
        ids[None],
        flat.view(3, 1, -1) if three else flat[None],
        sum(prefixes),
        layout,
        chosen,
        next_ids,
        *(pictures if len(places) else (None, None)),
    )


def _positions(sequence: Sequence, begin: int, end: int, three: bool) -> np.ndarray:
    """[end - begin], or [3, end - begin]."""
    if sequence.positions is not None:
        return sequence.positions[:, begin:end]
    positions = np.arange(begin, end)
    return np.broadcast_to(positions, (3, len(positions))) if three else positions


def _mutual(sequence: Sequence, begin: int, end: int) -> np.ndarray:
    """The number of the picture, counted from 1 in its sequence, of each token that is a vector of it; 0 elsewhere. A
    mark follows the last vector.
    """
    numbers = np.zeros(len(sequence.ids), dtype=np.int64)
    if sequence.vectors is None or not sequence.is_mutual:
        return numbers[begin:end]
    for number, (first, last) in enumerate(sequence.pictures, start=1):
        numbers[first:last][sequence.vectors[first:last] >= 0] = number
    return numbers[begin:end]


def _vectors(sequence: Sequence, begin: int, end: int) -> np.ndarray:
    return np.full(end - begin, -1) if sequence.vectors is None else sequence.vectors[begin:end]
