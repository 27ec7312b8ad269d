"""The dataset as token sequences, with the tokens that the loss counts marked."""

import hashlib
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.errors import JobError
from trainer.mask import learned, spans_of
from trainer.protocol import Protocol
from trainer.spec import Spec

ROLES = ("system", "user", "assistant")
TOKENIZE_AT_ONCE = 512
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


@dataclass(frozen=True)
class Row:
    """One row of the dataset: one sequence, or one for each assistant turn where the template renders turns differently over time.

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
    """The first answer of a row that was not cut: the messages before it, as they were written, and the sequence that has it."""

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
            conversations.append(_conversation(line, number))
    if not conversations:
        raise JobError("dataset_invalid", "The dataset has no rows.")
    return conversations


def _conversation(line: bytes, number: int) -> list[dict]:
    def wrong(what: str) -> JobError:
        return JobError("dataset_invalid", f"Row {number} {what}.", row=number)

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
    return [{name: message[name] for name in ("role", "content", "weight") if name in message} for message in messages]


def prepare(conversations: list[list[dict]], tokenizer, max_length: int, protocol: Protocol, numbers: list[int] | None = None) -> Prepared:
    """Renders and tokenizes every conversation; cuts sequences to `max_length` tokens; drops rows that are left with nothing to learn.

    `numbers`: each conversation's place in the dataset, where these are not all of its rows.
    """
    rows, examples, truncated, dropped = [], [], 0, 0
    numbers = numbers or list(range(1, len(conversations) + 1))
    for start in range(0, len(conversations), TOKENIZE_AT_ONCE):
        rendered = [spans_of(messages, tokenizer) for messages in conversations[start : start + TOKENIZE_AT_ONCE]]
        texts = [text for row in rendered for text, _ in row]
        # The text as a whole, once, and nothing added: the tokens that the engine makes of the same rendering.
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        pairs = iter(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
        some = conversations[start : start + TOKENIZE_AT_ONCE]
        for number, messages, row in zip(numbers[start : start + TOKENIZE_AT_ONCE], some, rendered, strict=True):
            whole = [_sequence(*next(pairs), spans) for _, spans in row]
            truncated += any(len(sequence.ids) > max_length for sequence in whole)
            cut = [Sequence(sequence.ids[:max_length], sequence.trained[:max_length]) for sequence in whole]
            if kept := [sequence for sequence in cut if sequence.targets]:
                rows.append(Row(number, kept))
                if len(examples) < MOST_EXAMPLES and len(whole[0].ids) <= max_length:
                    examples += _example(messages, kept[0])
            else:
                dropped += 1
    if dropped:
        message = f"{dropped} rows are left out: nothing of their answers is within the first {max_length} tokens."
        protocol.emit("warning", message, dropped_rows=dropped)
    if not rows:
        raise JobError("dataset_invalid", f"No row has any of its answer within the first {max_length} tokens.")
    return Prepared(rows, truncated, dropped, examples)


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
    """None of a conversation that begins with its answer, for which serving could make no prompt, or whose answer comes late."""
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
