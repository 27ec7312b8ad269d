"""The dataset as token sequences, with a mask of the tokens that the loss counts."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.content import Message, pictures_of, text_of
from trainer.data.control_text import Rendering, Span, control_text
from trainer.data.loss_mask import learned, training_renderings
from trainer.data.pictures import Picture
from trainer.data.rows import Conversation, Pair, read_rows
from trainer.data.sight import Sight
from trainer.data.tokenizer import Found, Tokenizer
from trainer.data.tools import uses_tools
from trainer.data.trained_with import Common
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

# Rows and characters tokenized at once. Bounds memory: tokens take some hundred bytes each.
TOKENIZE_AT_ONCE, CHARACTERS_AT_ONCE = 512, 1 << 21
# A served model scores examples too: long rows would delay its users. Pictures have hundreds of tokens.
MOST_EXAMPLES, LONGEST_EXAMPLE, LONGEST_SEEN_EXAMPLE = 4, 512, 2048


# In tokens that are compared with the engine's: a vector of a picture.
VECTOR = -1


@dataclass(frozen=True)
class Sequence:
    """One training text. `ids`: int32 [length]; `trained`: bool [length], the tokens that the loss counts.

    With pictures also: `vectors` int32 [length], the number of the picture's vector in the place of a token
    (trainer/data/sight.py), or -1; `pictures`: the first token of each picture and the one after it; and for a base
    with multimodal rotary positions, `positions` int32 [3, length]. `is_mutual`: the vectors of a picture attend to
    each other.
    """

    ids: np.ndarray
    trained: np.ndarray
    vectors: np.ndarray | None = None
    positions: np.ndarray | None = None
    pictures: tuple[tuple[int, int], ...] = ()
    is_mutual: bool = False

    def comparable(self) -> list[int]:
        """Its tokens, -1 for each vector of a picture."""
        return (self.ids if self.vectors is None else np.where(self.vectors >= 0, VECTOR, self.ids)).tolist()

    def part(self, start: int, end: int | None = None) -> "Sequence":
        """The tokens `[start, end)`. Not through a picture, and only text may be left out at the start."""
        shown = slice(start, len(self.ids) if end is None else end)
        if self.vectors is None:
            return Sequence(self.ids[shown], self.trained[shown])
        return Sequence(
            self.ids[shown],
            self.trained[shown],
            self.vectors[shown],
            None if self.positions is None else self.positions[:, shown] - start,
            tuple((first - start, last - start) for first, last in self.pictures if last <= shown.stop),
            self.is_mutual,
        )

    def followed_by(self, other: "Sequence") -> "Sequence":
        """With the text of another sequence after it."""
        ids, trained = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("ids", "trained"))
        if self.vectors is None:
            return Sequence(ids, trained)
        vectors = np.concatenate([self.vectors, np.full(len(other.ids), -1, dtype=np.int32)])
        positions = None
        if self.positions is not None:
            following = np.arange(len(other.ids), dtype=np.int32) + self.positions.max() + 1
            positions = np.concatenate([self.positions, np.broadcast_to(following, (3, len(following)))], axis=1)
        return Sequence(ids, trained, vectors, positions, self.pictures, self.is_mutual)

    @property
    def tokens(self) -> int:
        """Its length, with the vectors of its pictures."""
        return len(self.ids)

    @property
    def targets(self) -> int:
        """How many of its tokens are learned."""
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
        """Tokens of all its sequences."""
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def targets(self) -> int:
        """Learned tokens of all its sequences."""
        return sum(sequence.targets for sequence in self.sequences)


@dataclass(frozen=True)
class Example:
    """The first answer of a row that was not cut: the messages before it as written, and the sequence with the
    answer.
    """

    prompt: list[Message]
    sequence: Sequence


@dataclass(frozen=True)
class Prepared:
    """Tokenized rows. `examples`: a few of them, with their text; `common`: what they have in common."""

    rows: list[Row]
    truncated_rows: int
    dropped_rows: int
    examples: list[Example] = field(default_factory=list[Example])
    common: Common = field(default_factory=Common)

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return sum(row.tokens for row in self.rows)

    @property
    def targets(self) -> int:
        """Learned tokens of an epoch."""
        return sum(row.targets for row in self.rows)


def hold_out(rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Splits rows (counted from 0) into learned and held-out ones by the share, at least one of each."""
    count = min(max(1, round(rows * share)), rows - 1)
    held_out = set(random.Random(f"{seed}:validation").sample(range(rows), count))
    return [index for index in range(rows) if index not in held_out], sorted(held_out)


def keep_two_answers(rows: list[Conversation | Pair], learned: list[int], held_out: list[int]) -> None:
    """Exchanges a learned row for a held-out one if all learned answers are the same and a held-out one is not: `kto`
    compares each answer with another.
    """
    if len(learned) < 2 or any(rows[index][-1] != rows[learned[0]][-1] for index in learned):
        return
    place = next((place for place, index in enumerate(held_out) if rows[index][-1] != rows[learned[0]][-1]), None)
    if place is not None:
        learned[-1], held_out[place] = held_out[place], learned[-1]
        learned.sort()
        held_out.sort()


def prepare(
    rows: list[Conversation | Pair],
    tokenizer: Tokenizer,
    max_length: int,
    protocol: Protocol,
    numbers: list[int] | None = None,
) -> Prepared:
    """Renders and tokenizes all rows, cuts sequences to `max_length` tokens, and drops rows with nothing left to learn.

    Conversations are cut at their end. Preferences (pairs and rated answers) are cut at the front of their prompt, as
    their answers count as a whole.

    `numbers`: the rows' numbers in the dataset, if these are not all of its rows. Raises JobError("dataset_invalid") if
    a row cannot be rendered, or if no row is left.
    """
    kept: list[Row] = []
    plain: list[Example] = []
    marked: list[Example] = []
    common = Common()
    truncated, dropped, blind = 0, 0, 0
    numbers = numbers or list(range(1, len(rows) + 1))
    preferences = is_preference(rows[0])
    parts = [(number, part) for number, row in zip(numbers, rows, strict=True) for part in conversations_of(row)]
    tokenized = tokenize_rows(
        [part for _, part in parts], tokenizer, None if preferences else max_length, [number for number, _ in parts]
    )
    for number, row in zip(numbers, rows, strict=True):
        conversations = [next(tokenized) for _ in conversations_of(row)]
        _, messages, rendered, uncut = conversations[0]
        uncut = [sequence for *_, sequences in conversations for sequence in sequences]
        truncated += any(len(sequence.ids) > max_length for sequence in uncut)
        cut = cut_front(uncut, max_length) if preferences else cut_end(uncut, max_length)
        if not cut and any(sequence.pictures for sequence in uncut):
            blind += 1
        elif cut:
            kept.append(Row(number, cut, getattr(row, "label", None)))
            common.add(messages)
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
    cut_pictures = (
        f"their pictures and their answers do not fit into {max_length} tokens, and no picture is cut. Raise "
        "max_length, or take smaller pictures"
    )
    if dropped:
        protocol.emit("warning", f"{dropped} rows are left out: {nothing_left}.", dropped_rows=dropped)
    if blind:
        protocol.emit("warning", f"{blind} rows are left out: {cut_pictures}.", dropped_rows=blind)
    if not kept:
        raise JobError("dataset_invalid", f"No row is left: {cut_pictures if blind else nothing_left}.")
    return Prepared(kept, truncated, dropped + blind, examples, common)


def is_preference(row: Conversation | Pair) -> bool:
    """Whether a preference objective learns from the row: a pair, or a rated answer."""
    return isinstance(row, Pair) or getattr(row, "label", None) is not None


def conversations_of(row: Conversation | Pair) -> list[Conversation]:
    """The conversations of a row: one, or the chosen and the rejected one of a pair."""
    return row if isinstance(row, Pair) else [row]


def cut_end(sequences: list[Sequence], max_length: int) -> list[Sequence]:
    """The first `max_length` tokens of each sequence that has learned tokens, and all of its pictures, there."""
    fitting = [sequence for sequence in sequences if all(end <= max_length for _, end in sequence.pictures)]
    cut = [sequence.part(0, max_length) for sequence in fitting]
    return [sequence for sequence in cut if sequence.targets]


def cut_front(sequences: list[Sequence], max_length: int) -> list[Sequence]:
    """Answers to one prompt, without the first tokens of the prompt if the longest has more than `max_length` tokens.
    None if the prompt has too few, or a picture there.
    """
    over = max(len(sequence.ids) for sequence in sequences) - max_length
    if over <= 0:
        return sequences
    # Something has to precede the first learned token.
    if over >= min(int(np.argmax(sequence.trained)) for sequence in sequences):
        return []
    if any(start < over for sequence in sequences for start, _ in sequence.pictures):
        return []
    return [sequence.part(over) for sequence in sequences]


def tokenize_rows(
    conversations: list[Conversation], tokenizer: Tokenizer, max_length: int | None, numbers: list[int]
) -> Iterator[tuple[int, list[Message], list[Rendering], list[Sequence]]]:
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
        # Where pictures are known only in whole texts.
        bound = None if any(rendering.pictures for row in rendered for rendering in row) else max_length
        try:
            encoded = controls.encode([rendering for row in rendered for rendering in row], bound)
        except JobError:
            # Retry one by one to find the failing row.
            encoded: list[tuple[list[int], list[Span], list[Span]]] = []
            for index, row in zip(batch, rendered, strict=True):
                encoded += _at_line(
                    conversations[index], numbers[index], lambda _, row=row, bound=bound: controls.encode(row, bound)
                )
        left = iter(encoded)
        for index, row in zip(batch, rendered, strict=True):
            sequences = [_sequence(*next(left)) for _ in row]
            if any(rendering.pictures for rendering in row):
                sequences = _at_line(
                    conversations[index],
                    numbers[index],
                    lambda _, row=row, texts=sequences: [
                        with_pictures(text, rendering.pictures, tokenizer.sight)
                        if rendering.pictures and tokenizer.sight
                        else text
                        for text, rendering in zip(texts, row, strict=True)
                    ],
                )
            yield numbers[index], conversations[index], row, sequences


def _at_line(messages: list[Message], number: int, work: Callable[[Any], Found]) -> Found:
    try:
        return work(messages)
    except JobError as problem:
        line = getattr(messages, "line", number)
        raise JobError(problem.code, f"Line {line}: {problem}", line=line) from problem


def _batches(conversations: list[Conversation]) -> Iterator[range]:
    """Index ranges of conversations to tokenize at once."""
    start, characters = 0, 0
    for index, messages in enumerate(conversations):
        characters += sum(len(text_of(message["content"])) for message in messages)
        if characters >= CHARACTERS_AT_ONCE or index + 1 - start == TOKENIZE_AT_ONCE:
            yield range(start, index + 1)
            start, characters = index + 1, 0
    if start < len(conversations):
        yield range(start, len(conversations))


def prepare_splits(
    spec: Spec, rows: list[Conversation | Pair], tokenizer: Tokenizer, max_length: int, protocol: Protocol
) -> tuple[Prepared, Prepared | None]:
    """The learned rows, and the validation rows: a share of the dataset or another dataset; None without validation.
    Raises JobError("dataset_invalid") as `prepare`, or if one row is to be split.
    """
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
    if spec.options.objective == "kto":
        keep_two_answers(rows, learned, held_out)
    return chosen(learned), chosen(held_out)


def _example(messages: list[Message], sequence: Sequence) -> list[Example]:
    """The example of a conversation. None if it starts with its answer, which serving has no prompt for, or if the
    answer comes late.
    """
    # The checks of results ask without tools and earlier thoughts.
    if uses_tools(messages, getattr(messages, "tools", None)):
        return []
    prompt = messages[: next(index for index, message in enumerate(messages) if learned(message))]
    if any("reasoning_content" in message for message in prompt):
        return []
    # Pictures of later turns are not in the prompt.
    if later := sequence.pictures[len(pictures_of(prompt)) :]:
        sequence = sequence.part(0, later[0][0])
    return [Example(prompt, sequence)] if prompt and shown_of(sequence).trained.any() else []


def shown_of(sequence: Sequence) -> Sequence:
    """The tokens of an example that checks score: its first ones."""
    longest = LONGEST_SEEN_EXAMPLE if sequence.pictures else LONGEST_EXAMPLE
    return sequence.part(0, min(longest, sequence.tokens))


def _sequence(ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> Sequence:
    starts = np.array([start for start, _ in offsets])
    trained = np.zeros(len(ids), dtype=bool)
    for begin, end in spans:
        trained |= (starts >= begin) & (starts < end)
    # Nothing precedes the first token, so nothing can predict it.
    trained[:1] = False
    return Sequence(np.array(ids, dtype=np.int32), trained)


def with_pictures(text: Sequence, pictures: tuple[Picture, ...], sight: Sight) -> Sequence:
    """The sequence with pictures in the places of their placeholders. Raises JobError("dataset_invalid")."""
    places = np.nonzero(text.ids == sight.image_token)[0]
    if len(places) != len(pictures):
        raise JobError(
            "dataset_invalid",
            f"The row spells {sight.image_text}, the token that stands for a picture, as text. Remove it.",
        )
    ids: list[np.ndarray] = []
    trained: list[np.ndarray] = []
    vectors: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    blocks: list[tuple[int, int]] = []
    start, at, position = 0, 0, 0

    def add(new_ids: np.ndarray, new_trained: np.ndarray, new_vectors: np.ndarray, new: np.ndarray | None) -> None:
        nonlocal at, position
        ids.append(new_ids)
        trained.append(new_trained)
        vectors.append(new_vectors)
        new = np.broadcast_to(np.arange(len(new_ids), dtype=np.int32), (3, len(new_ids))) if new is None else new
        positions.append(new + position)
        at += len(new_ids)
        position += int(new.max(initial=-1)) + 1

    for place, picture in zip(places, pictures, strict=True):
        add(text.ids[start:place], text.trained[start:place], np.full(place - start, -1, dtype=np.int32), None)
        shown = sight.shown(picture)
        numbers = np.full(len(shown.ids), -1, dtype=np.int32)
        numbers[shown.is_vector] = sight.first_vector(picture) + np.arange(shown.vectors, dtype=np.int32)
        blocks.append((at, at + len(shown.ids)))
        add(shown.ids, np.zeros(len(shown.ids), dtype=bool), numbers, shown.positions)
        start = place + 1
    add(text.ids[start:], text.trained[start:], np.full(len(text.ids) - start, -1, dtype=np.int32), None)
    return Sequence(
        np.concatenate(ids),
        np.concatenate(trained),
        np.concatenate(vectors),
        np.concatenate(positions, axis=1) if sight.three_positions else None,
        tuple(blocks),
        sight.is_mutual,
    )
