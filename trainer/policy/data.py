"""What a pass of a policy update is given: answers as tokens, in groups with one prompt."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.dataset import Row, Sequence
from trainer.data.packing import Limits, shared_prefix
from trainer.runtime.errors import JobError


@dataclass(frozen=True)
class Datum:
    """A text and its trained tokens. Floats are of the trained tokens, in their order: `advantages`, `weights` (what
    their losses are multiplied with), `old` and `sampled` (log-probabilities; None: those of the weights as they are).
    `labels`: tokens whose probabilities are computed in the places of the trained tokens; None: these themselves.
    `group`: consecutive data with the same number begin with the same prompt.
    """

    sequence: Sequence
    advantages: np.ndarray
    weights: np.ndarray
    old: np.ndarray | None = None
    sampled: np.ndarray | None = None
    labels: np.ndarray | None = None
    group: int = 0

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.sequence.tokens

    @property
    def targets(self) -> int:
        """How many of its tokens are trained."""
        return self.sequence.targets


def read_data(values: list[dict[str, Any]], vocabulary: int, max_length: int) -> list[Datum]:
    """Reads data of JSON: `ids`; `start`, the first trained token, or `trained`, a list of their positions;
    `advantages` and `weights` (a number, or one for each trained token); `old`, `sampled`, `labels` and `group`. Raises
    JobError("dataset_invalid") that says what is wrong with which datum.
    """
    return [_datum(value, place, vocabulary, max_length) for place, value in enumerate(values)]


def _datum(value: dict[str, Any], place: int, vocabulary: int, max_length: int) -> Datum:
    def refuse(why: str) -> JobError:
        return JobError("dataset_invalid", f"Datum {place}: {why}.")

    ids = np.asarray(value.get("ids"))
    if ids.ndim != 1 or ids.dtype.kind != "i" or not 2 <= len(ids) <= max_length:
        raise refuse(f"'ids' must be 2 to {max_length} whole numbers")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise refuse(f"'ids' must be tokens of the vocabulary, 0 to {vocabulary - 1}")
    chosen = np.asarray(value["trained"] if "trained" in value else range(int(value.get("start", 1)), len(ids)))
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind != "i" or chosen.min() < 1 or chosen.max() >= len(ids):
        raise refuse("the trained tokens must be positions from 1 to the last token: nothing precedes the first")
    trained = np.zeros(len(ids), dtype=bool)
    trained[chosen] = True
    count = int(trained.sum())

    def numbers(name: str, default: float | None) -> np.ndarray | None:
        given = value.get(name, default)
        if given is None:
            return None
        array = np.asarray(given, dtype=np.float32)
        if array.ndim == 0:
            array = np.full(count, array, dtype=np.float32)
        if array.shape != (count,) or not np.isfinite(array).all():
            raise refuse(f"'{name}' must have a finite number for each of the {count} trained tokens")
        return array

    labels = None
    if value.get("labels") is not None:
        labels = np.asarray(value["labels"])
        if labels.shape != (count,) or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= vocabulary:
            raise refuse(f"'labels' must be {count} tokens of the vocabulary, 0 to {vocabulary - 1}")
        labels = labels.astype(np.int64)

    advantages, weights = numbers("advantages", 0.0), numbers("weights", 1.0)
    assert advantages is not None and weights is not None
    sequence = Sequence(ids.astype(np.int32), trained)
    return Datum(
        sequence,
        advantages,
        weights,
        numbers("old", None),
        numbers("sampled", None),
        labels,
        int(value.get("group", -1 - place)),
    )


def passes(data: list[Datum], limits: Limits) -> list[list[list[int]]]:
    """The passes over data, as positions: each has groups of equally many data, each group with one prompt that is
    computed once. A group that does not fit into a pass is divided.
    """
    groups: list[list[int]] = []
    tokens = targets = 0
    for place, datum in enumerate(data):
        begins = not groups or data[groups[-1][-1]].group != datum.group
        tokens, targets = (0, 0) if begins else (tokens, targets)
        full = tokens + datum.tokens > limits.tokens or targets + datum.targets > limits.targets
        if begins or full or limits.documents == 1:
            groups.append([])
            tokens = targets = 0
        groups[-1].append(place)
        tokens, targets = tokens + datum.tokens, targets + datum.targets
    made: list[list[list[int]]] = []
    tokens = targets = 0
    for group in groups:
        own_tokens, own_targets = (sum(getattr(data[place], name) for place in group) for name in ("tokens", "targets"))
        fits = tokens + own_tokens <= limits.tokens and targets + own_targets <= limits.targets
        if not made or len(made[-1][0]) != len(group) or not fits or limits.documents == 1:
            made.append([])
            tokens = targets = 0
        made[-1].append(group)
        tokens, targets = tokens + own_tokens, targets + own_targets
    return made


def rows_of(data: list[Datum], groups: list[list[int]]) -> list[Row]:
    """The groups of a pass as rows, for packing."""
    return [Row(number, [data[place].sequence for place in group]) for number, group in enumerate(groups)]


def sizes_of(data: list[Datum], groups: list[list[int]]) -> tuple[int, int]:
    """Tokens that a pass computes, the prompt of each group once, and its trained tokens."""
    tokens = 0
    for group in groups:
        sequences = [data[place].sequence for place in group]
        tokens += sum(sequence.tokens for sequence in sequences) - (len(group) - 1) * shared_prefix(sequences)
    return tokens, sum(data[place].targets for group in groups for place in group)
