"""The dataset as token sequences, with the tokens that the loss counts marked."""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.data.control_text import Rendering, control_text
from trainer.runtime.errors import JobError
from trainer.data.loss_mask import learned, spans_of
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

ROLES = ("system", "user", "assistant")
# Rows at once, and characters, which bounds what their tokens take meanwhile: some hundred bytes each.
TOKENIZE_AT_ONCE, CHARACTERS_AT_ONCE = 512, 1 << 21
# Examples are compared by a served model too: long rows would hold up whom it serves.
MOST_EXAMPLES, LONGEST_EXAMPLE = 4, 512
# A number of any length is JSON; Python refuses to read more than 4,300 digits unless told otherwise.
sys.set_int_max_str_digits(0)


@dataclass(frozen=True)
class Sequence:
    """One text that the model sees. `ids`: int32 [length]; `trained`: bool [length], the tokens that the loss counts."""

    ids: np.ndarray
    trained: np.ndarray

    @property
    def targets(self) -> int:
        return int(self.trained.sum())


class Conversation(list):
    """The messages of a row, and the line of the file that it stands in, counted from 1."""

    def __init__(self, messages: list[dict], line: int) -> None:
        super().__init__(messages)
        self.line = line


@dataclass(frozen=True)
class Row:
    """One row of the dataset: one sequence, or one for each assistant turn where the template renders turns differently
    over time.

    `number`: its place among the dataset's rows, counted from 1.
    """

    number: int
    sequences: list[Sequence]

    @property
    def tokens(self) -> int:
        return sum(len(sequence.ids) for sequence in self.sequences)

    @property
    def targets(self) -> int:
        return sum(sequence.targets for sequence in self.sequences)


@dataclass(frozen=True)
class Example:
    """The first answer of a row that was not cut: the messages before it, as they were written, and the sequence that
    has it.
    """

    prompt: list[dict]
    sequence: Sequence


@dataclass(frozen=True)
class Prepared:
    """`examples`: a few of the rows, with their text."""

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
    """Which rows (counted from 0) are learned and which held out: the share asked for, but at least one of each."""
    count = min(max(1, round(rows * share)), rows - 1)
    held = set(random.Random(f"{seed}:validation").sample(range(rows), count))
    return [index for index in range(rows) if index not in held], sorted(held)


def read_conversations(path: Path, sha256: str) -> list[list[dict]]:
    """Reads JSON lines of `{"messages":[{"role","content"},…]}`. Raises JobError("dataset_invalid") naming the first bad line."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise JobError("dataset_invalid", f"The dataset's file cannot be read: {problem.strerror}.") from problem
    if hashlib.sha256(content).hexdigest() != sha256:
        raise JobError("dataset_invalid", "The dataset's file is not the one that the job was created with: its hash differs.")
    conversations = []
    # Rows end with a line feed alone, as the service counted them.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip(b" \t\r"):
            conversations.append(conversation(line, number))
    if not conversations:
        raise JobError("dataset_invalid", "The dataset has no rows.")
    return conversations


def conversation(line: bytes, number: int) -> Conversation:
    """The row in a line of the file. Raises JobError("dataset_invalid") naming the line where it is none."""

    def wrong(what: str) -> JobError:
        return JobError("dataset_invalid", f"Line {number} {what}.", line=number)

    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise wrong("is not JSON") from problem
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise wrong("has no messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise wrong("has a message whose role is none of system, user and assistant")
        if not isinstance(message.get("content"), str):
            raise wrong("has a message whose content is not text")
        if message.get("weight", 1) not in (0, 1):
            raise wrong("has a message whose weight is neither 0 nor 1")
    if messages[-1]["role"] != "assistant":
        raise wrong("does not end with an assistant's message, so its end teaches nothing")
    shown = [{name: message[name] for name in ("role", "content", "weight") if name in message} for message in messages]
    # A file that was converted from another format says where its rows stood in that.
    source = row.get("source_line")
    return Conversation(shown, source if isinstance(source, int) else number)


def prepare(conversations: list[list[dict]], tokenizer, max_length: int, protocol: Protocol, numbers: list[int] | None = None) -> Prepared:
    """Renders and tokenizes every conversation; cuts sequences to `max_length` tokens; drops rows that are left with
    nothing to learn.

    `numbers`: each conversation's place in the dataset, where these are not all of its rows.
    """
    rows, plain, marked, truncated, dropped = [], [], [], 0, 0
    numbers = numbers or list(range(1, len(conversations) + 1))
    for number, messages, rendered, whole in tokenized(conversations, tokenizer, max_length, numbers):
        truncated += any(len(sequence.ids) > max_length for sequence in whole)
        cut = [Sequence(sequence.ids[:max_length], sequence.trained[:max_length]) for sequence in whole]
        if kept := [sequence for sequence in cut if sequence.targets]:
            rows.append(Row(number, kept))
            examples = plain if rendered[0].mark is None else marked
            if len(examples) < MOST_EXAMPLES and len(whole[0].ids) <= max_length:
                examples += _example(messages, kept[0])
        else:
            dropped += 1
    # Those first whose tokens no setting changes (parse_control_tokens): they are compared for as long as the result
    # lives.
    examples = (plain or marked)[:MOST_EXAMPLES]
    if dropped:
        message = f"{dropped} rows are left out: nothing of their answers is within the first {max_length} tokens."
        protocol.emit("warning", message, dropped_rows=dropped)
    if not rows:
        raise JobError("dataset_invalid", f"No row has any of its answer within the first {max_length} tokens.")
    return Prepared(rows, truncated, dropped, examples)


def tokenized(
    conversations: list[list[dict]], tokenizer, max_length: int, numbers: list[int]
) -> Iterator[tuple[int, list[dict], list[Rendering], list[Sequence]]]:
    """Each conversation with its number, its renderings and, one of each, its sequences, whole; of what is far longer
    than `max_length`
    tokens more than these. Raises JobError("dataset_invalid") naming the line of a row that cannot be rendered or tokenized.
    """
    controls = control_text(tokenizer)
    for some in _batches(conversations):
        rendered = [_at_line(conversations[index], numbers[index], lambda row: spans_of(row, tokenizer, max_length)) for index in some]
        try:
            encoded = controls.encode([each for row in rendered for each in row], max_length)
        except JobError:
            # Again and one by one, to find the row that it is about.
            encoded = []
            for index, row in zip(some, rendered, strict=True):
                encoded += _at_line(conversations[index], numbers[index], lambda _, row=row: controls.encode(row, max_length))
        left = iter(encoded)
        for index, row in zip(some, rendered, strict=True):
            yield numbers[index], conversations[index], row, [_sequence(*next(left)) for _ in row]


def _at_line(messages: list[dict], number: int, work):
    try:
        return work(messages)
    except JobError as problem:
        line = getattr(messages, "line", number)
        raise JobError(problem.code, f"Line {line}: {problem}", line=line) from problem


def _batches(conversations: list[list[dict]]) -> Iterator[range]:
    """The conversations, by their places, in groups that are tokenized at once."""
    start, characters = 0, 0
    for index, messages in enumerate(conversations):
        characters += sum(len(message["content"]) for message in messages)
        if characters >= CHARACTERS_AT_ONCE or index + 1 - start == TOKENIZE_AT_ONCE:
            yield range(start, index + 1)
            start, characters = index + 1, 0
    if start < len(conversations):
        yield range(start, len(conversations))


def prepared(
    spec: Spec, conversations: list[list[dict]], tokenizer, max_length: int, protocol: Protocol
) -> tuple[Prepared, Prepared | None]:
    """What is learned, and what is held out: a share of the rows or a dataset of its own."""
    watched = spec.evaluation
    if watched.dataset:
        own = read_conversations(Path(watched.dataset.path), watched.dataset.sha256)
        return prepare(conversations, tokenizer, max_length, protocol), prepare(own, tokenizer, max_length, protocol)
    if not watched.split:
        return prepare(conversations, tokenizer, max_length, protocol), None
    if len(conversations) < 2:
        raise JobError("dataset_invalid", "The dataset has one row; a validation split needs at least two.")

    def chosen(indices: list[int]) -> Prepared:
        return prepare([conversations[i] for i in indices], tokenizer, max_length, protocol, [i + 1 for i in indices])

    learned, held = hold_out(len(conversations), watched.split, spec.training.seed)
    return chosen(learned), chosen(held)


def _example(messages: list[dict], sequence: Sequence) -> list[Example]:
    """None of a conversation that begins with its answer, for which serving could make no prompt, or whose answer comes
    late.
    """
    prompt = messages[: next(index for index, message in enumerate(messages) if learned(message))]
    fits = prompt and sequence.trained[:LONGEST_EXAMPLE].any()
    return [Example(prompt, sequence)] if fits else []


def _sequence(ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> Sequence:
    starts = np.array([start for start, _ in offsets])
    trained = np.zeros(len(ids), dtype=bool)
    for begin, end in spans:
        trained |= (starts >= begin) & (starts < end)
    # Nothing comes before the first token, so nothing can predict it.
    trained[:1] = False
    return Sequence(np.array(ids, dtype=np.int32), trained)
