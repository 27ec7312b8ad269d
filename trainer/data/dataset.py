"""The dataset as token sequences, with a mask of the tokens that the loss counts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.data.control_text import Rendering, control_text
from trainer.data.loss_mask import learned, training_renderings
from trainer.data.rows import Conversation, Pair, read_rows
from trainer.data.tools import uses_tools
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

# Rows and characters tokenized at once. Bounds memory: tokens take some hundred bytes each.
TOKENIZE_AT_ONCE, CHARACTERS_AT_ONCE = 512, 1 << 21
# A served model scores examples too: long rows would delay its users.
MOST_EXAMPLES, LONGEST_EXAMPLE = 4, 512


@dataclass(frozen=True)
class Sequence:
    """One training text. `ids`: int32 [length]; `trained`: bool [length], the tokens that the loss counts."""

    ids: np.ndarray
    trained: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> int:
        return int(self.trained.sum())


@dataclass(frozen=True)
class Row:
    """One row of the dataset: one sequence, or one for each assistant turn if the template renders earlier turns
    differently; of a pair, the one with the chosen and the one with the rejected answer.

    `number`: the row's number in the dataset, counted from 1. `label`: of a rated answer, whether it is a good one.
    """

    number: int
    sequences: list[Sequence]
    label: bool | None = None

    @property
    def tokens(self) -> int:
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def targets(self) -> int:
        return sum(sequence.targets for sequence in self.sequences)


@dataclass(frozen=True)
class Example:
    """The first answer of a row that was not cut: the messages before it as written, and the sequence with the
    answer.
    """

    prompt: list[dict]
    sequence: Sequence


@dataclass(frozen=True)
class Prepared:
    """Tokenized rows. `examples`: a few of them, with their text."""

    rows: list[Row]
    truncated_rows: int
    dropped_rows: int
    examples: list[Example] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def targets(self) -> int:
        return sum(row.targets for row in self.rows)


def hold_out(rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Splits rows (counted from 0) into learned and held-out ones by the share, at least one of each."""
    count = min(max(1, round(rows * share)), rows - 1)
    held_out = set(random.Random(f"{seed}:validation").sample(range(rows), count))
    return [index for index in range(rows) if index not in held_out], sorted(held_out)


def prepare(
    rows: list[Conversation | Pair],
    tokenizer,
    max_length: int,
    protocol: Protocol,
    numbers: list[int] | None = None,
) -> Prepared:
    """Renders and tokenizes all rows, cuts sequences to `max_length` tokens, and drops rows with nothing left to learn.

    Conversations are cut at their end. Preferences (pairs and rated answers) are cut at the front of their prompt, as
    their answers count as a whole.

    `numbers`: the rows' numbers in the dataset, if these are not all of its rows.
    """
    kept, plain, marked, truncated, dropped = [], [], [], 0, 0
    numbers = numbers or list(range(1, len(rows) + 1))
    preferences = is_preference(rows[0])
    parts = [(number, part) for number, row in zip(numbers, rows, strict=True) for part in conversations_of(row)]
    tokenized = tokenize_rows(
        [part for _, part in parts], tokenizer, None if preferences else max_length, [number for number, _ in parts]
    )
    for number, row in zip(numbers, rows, strict=True):
        found = [next(tokenized) for _ in conversations_of(row)]
        _, messages, rendered, uncut = found[0]
        uncut = [sequence for *_, sequences in found for sequence in sequences]
        truncated += any(len(sequence.ids) > max_length for sequence in uncut)
        cut = cut_front(uncut, max_length) if preferences else cut_end(uncut, max_length)
        if cut:
            kept.append(Row(number, cut, getattr(row, "label", None)))
            examples = plain if rendered[0].mark is None else marked
            if len(examples) < MOST_EXAMPLES and len(uncut[0].ids) <= max_length:
                examples += _example(messages, cut[0])
        else:
            dropped += 1
    # Examples whose tokens do not depend on parse_control_tokens come first: they are compared as long as the result
    # exists.
    examples = (plain or marked)[:MOST_EXAMPLES]
    nothing_left = (
        f"an answer with a token of its prompt is longer than {max_length} tokens"
        if preferences
        else f"nothing of their answers is within the first {max_length} tokens"
    )
    if dropped:
        protocol.emit("warning", f"{dropped} rows are left out: {nothing_left}.", dropped_rows=dropped)
    if not kept:
        raise JobError("dataset_invalid", f"No row is left: {nothing_left}.")
    return Prepared(kept, truncated, dropped, examples)


def is_preference(row: Conversation | Pair) -> bool:
    return isinstance(row, Pair) or getattr(row, "label", None) is not None


def conversations_of(row: Conversation | Pair) -> list[Conversation]:
    return row if isinstance(row, Pair) else [row]


def cut_end(sequences: list[Sequence], max_length: int) -> list[Sequence]:
    """The first `max_length` tokens of each sequence that has learned tokens there."""
    cut = [Sequence(sequence.ids[:max_length], sequence.trained[:max_length]) for sequence in sequences]
    return [sequence for sequence in cut if sequence.targets]


def cut_front(sequences: list[Sequence], max_length: int) -> list[Sequence]:
    """Answers to one prompt, without the first tokens of the prompt if the longest has more than `max_length` tokens.
    None if the prompt has too few.
    """
    over = max(len(sequence.ids) for sequence in sequences) - max_length
    if over <= 0:
        return sequences
    # Something has to precede the first learned token.
    if over >= min(int(np.argmax(sequence.trained)) for sequence in sequences):
        return []
    return [Sequence(sequence.ids[over:], sequence.trained[over:]) for sequence in sequences]


def tokenize_rows(
    conversations: list[Conversation], tokenizer, max_length: int | None, numbers: list[int]
) -> Iterator[tuple[int, list[dict], list[Rendering], list[Sequence]]]:
    """Yields each conversation with its number, its renderings and their sequences, uncut. Of texts far longer than
    `max_length` tokens, only somewhat more than that; None: the whole texts. Raises JobError("dataset_invalid") with
    the line of a row that cannot be rendered or tokenized.
    """
    controls = control_text(tokenizer)
    for batch in _batches(conversations):
        rendered = [
            _at_line(conversations[index], numbers[index], lambda row: training_renderings(row, tokenizer, max_length))
            for index in batch
        ]
        try:
            encoded = controls.encode([each for row in rendered for each in row], max_length)
        except JobError:
            # Retry one by one to find the failing row.
            encoded = []
            for index, row in zip(batch, rendered, strict=True):
                encoded += _at_line(
                    conversations[index], numbers[index], lambda _, row=row: controls.encode(row, max_length)
                )
        left = iter(encoded)
        for index, row in zip(batch, rendered, strict=True):
            yield numbers[index], conversations[index], row, [_sequence(*next(left)) for _ in row]


def _at_line(messages: list[dict], number: int, work):
    try:
        return work(messages)
    except JobError as problem:
        line = getattr(messages, "line", number)
        raise JobError(problem.code, f"Line {line}: {problem}", line=line) from problem


def _batches(conversations: list[list[dict]]) -> Iterator[range]:
    """Index ranges of conversations to tokenize at once."""
    start, characters = 0, 0
    for index, messages in enumerate(conversations):
        characters += sum(len(message["content"]) for message in messages)
        if characters >= CHARACTERS_AT_ONCE or index + 1 - start == TOKENIZE_AT_ONCE:
            yield range(start, index + 1)
            start, characters = index + 1, 0
    if start < len(conversations):
        yield range(start, len(conversations))


def prepare_splits(
    spec: Spec, rows: list[Conversation | Pair], tokenizer, max_length: int, protocol: Protocol
) -> tuple[Prepared, Prepared | None]:
    """The learned rows, and the validation rows: a share of the dataset or another dataset."""
    evaluation = spec.evaluation
    if evaluation.dataset:
        held_out = read_rows(Path(evaluation.dataset.path), evaluation.dataset.sha256, spec.options.objective)
        return prepare(rows, tokenizer, max_length, protocol), prepare(held_out, tokenizer, max_length, protocol)
    if not evaluation.split:
        return prepare(rows, tokenizer, max_length, protocol), None
    if len(rows) < 2:
        raise JobError("dataset_invalid", "The dataset has one row; a validation split needs at least two.")

    def chosen(indices: list[int]) -> Prepared:
        return prepare([rows[i] for i in indices], tokenizer, max_length, protocol, [i + 1 for i in indices])

    learned, held_out = hold_out(len(rows), evaluation.split, spec.training.seed)
    return chosen(learned), chosen(held_out)


def _example(messages: list[dict], sequence: Sequence) -> list[Example]:
    """The example of a conversation. None if it starts with its answer, which serving has no prompt for, or if the
    answer comes late.
    """
    # The checks of results ask without tools.
    if uses_tools(messages, getattr(messages, "tools", None)):
        return []
    prompt = messages[: next(index for index, message in enumerate(messages) if learned(message))]
    fits = prompt and sequence.trained[:LONGEST_EXAMPLE].any()
    return [Example(prompt, sequence)] if fits else []


def _sequence(ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> Sequence:
    starts = np.array([start for start, _ in offsets])
    trained = np.zeros(len(ids), dtype=bool)
    for begin, end in spans:
        trained |= (starts >= begin) & (starts < end)
    # Nothing precedes the first token, so nothing can predict it.
    trained[:1] = False
    return Sequence(np.array(ids, dtype=np.int32), trained)
