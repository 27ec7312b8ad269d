"""The dataset as token sequences, with a mask of the tokens that the loss counts."""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.data.control_text import Rendering, control_text
from trainer.data.loss_mask import learned, training_renderings
from trainer.data.tools import call_of, tool_of, uses_tools
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

ROLES = ("system", "developer", "user", "assistant", "tool")
# Rows and characters tokenized at once. Bounds memory: tokens take some hundred bytes each.
TOKENIZE_AT_ONCE, CHARACTERS_AT_ONCE = 512, 1 << 21
# A served model scores examples too: long rows would delay its users.
MOST_EXAMPLES, LONGEST_EXAMPLE = 4, 512
# JSON allows numbers of any length; Python refuses more than 4,300 digits by default.
sys.set_int_max_str_digits(0)


@dataclass(frozen=True)
class Sequence:
    """One training text. `ids`: int32 [length]; `trained`: bool [length], the tokens that the loss counts."""

    ids: np.ndarray
    trained: np.ndarray

    @property
    def targets(self) -> int:
        return int(self.trained.sum())


class Conversation(list):
    """The messages of a row, its line in the file, counted from 1, and the tools that the model may call."""

    def __init__(self, messages: list[dict], line: int, tools: list[dict] | None = None) -> None:
        super().__init__(messages)
        self.line = line
        self.tools = tools


@dataclass(frozen=True)
class Row:
    """One row of the dataset: one sequence, or one for each assistant turn if the template renders earlier turns
    differently.

    `number`: the row's number in the dataset, counted from 1.
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


def read_conversations(path: Path, sha256: str) -> list[list[dict]]:
    """Reads JSON lines of `{"messages":[{"role","content"},…]}`. Raises JobError("dataset_invalid") with the first bad
    line.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise JobError("dataset_invalid", f"The dataset's file cannot be read: {problem.strerror}.") from problem
    if hashlib.sha256(content).hexdigest() != sha256:
        raise JobError(
            "dataset_invalid", "The dataset's file is not the one that the job was created with: its hash differs."
        )
    conversations = []
    # Only a line feed ends a row, as the service counts them.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip(b" \t\r"):
            conversations.append(conversation(line, number))
    if not conversations:
        raise JobError("dataset_invalid", "The dataset has no rows.")
    return conversations


def conversation(line: bytes, number: int) -> Conversation:
    """Parses a line of the file. Raises JobError("dataset_invalid") with the line number if it is not a valid row."""

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
            raise wrong(f"has a message whose role is none of {', '.join(ROLES)}")
        if not isinstance(_text_of(message), str):
            raise wrong("has a message whose content is not text")
        if message.get("weight", 1) not in (0, 1):
            raise wrong("has a message whose weight is neither 0 nor 1")
    if messages[-1]["role"] != "assistant":
        raise wrong("does not end with an assistant's message, so its end teaches nothing")
    try:
        names = {
            call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or []
        }
        fields = [_fields_of(message, names) for message in messages]
        tools = [tool_of(tool) for tool in row.get("tools") or []]
    except (AttributeError, KeyError, TypeError) as problem:
        raise wrong("has a tool or a call that is not complete") from problem
    # Files converted from another format have the row's line in the original.
    source = row.get("source_line")
    return Conversation(fields, source if isinstance(source, int) else number, tools or None)


def _text_of(message: dict):
    """A message's content as text; None if it is something else. A message that only calls tools may have none."""
    content = message.get("content")
    if content is None:
        return "" if message.get("tool_calls") else None
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        return "".join(parts) if parts and all(isinstance(part, str) for part in parts) else None
    return content


def _fields_of(message: dict, names: dict[str, str]) -> dict:
    """The fields that training and templates read."""
    role = "system" if message["role"] == "developer" else message["role"]
    fields = {"role": role, "content": _text_of(message)}
    if "weight" in message:
        fields["weight"] = message["weight"]
    if message.get("tool_calls"):
        fields["tool_calls"] = [call_of(call) for call in message["tool_calls"]]
    if role == "tool":
        fields |= {"tool_call_id": message["tool_call_id"], "name": names[message["tool_call_id"]]}
    return fields


def prepare(
    conversations: list[list[dict]], tokenizer, max_length: int, protocol: Protocol, numbers: list[int] | None = None
) -> Prepared:
    """Renders and tokenizes all conversations, cuts sequences to `max_length` tokens, and drops rows with nothing left
    to learn.

    `numbers`: the conversations' numbers in the dataset, if these are not all of its rows.
    """
    rows, plain, marked, truncated, dropped = [], [], [], 0, 0
    numbers = numbers or list(range(1, len(conversations) + 1))
    for number, messages, rendered, uncut in tokenize_rows(conversations, tokenizer, max_length, numbers):
        truncated += any(len(sequence.ids) > max_length for sequence in uncut)
        cut = [Sequence(sequence.ids[:max_length], sequence.trained[:max_length]) for sequence in uncut]
        if learnable := [sequence for sequence in cut if sequence.targets]:
            rows.append(Row(number, learnable))
            examples = plain if rendered[0].mark is None else marked
            if len(examples) < MOST_EXAMPLES and len(uncut[0].ids) <= max_length:
                examples += _example(messages, learnable[0])
        else:
            dropped += 1
    # Examples whose tokens do not depend on parse_control_tokens come first: they are compared as long as the result
    # exists.
    examples = (plain or marked)[:MOST_EXAMPLES]
    if dropped:
        message = f"{dropped} rows are left out: nothing of their answers is within the first {max_length} tokens."
        protocol.emit("warning", message, dropped_rows=dropped)
    if not rows:
        raise JobError("dataset_invalid", f"No row has any of its answer within the first {max_length} tokens.")
    return Prepared(rows, truncated, dropped, examples)


def tokenize_rows(
    conversations: list[list[dict]], tokenizer, max_length: int, numbers: list[int]
) -> Iterator[tuple[int, list[dict], list[Rendering], list[Sequence]]]:
    """Yields each conversation with its number, its renderings and their sequences, uncut. Of texts far longer than
    `max_length` tokens, only somewhat more than that. Raises JobError("dataset_invalid") with the line of a row that
    cannot be rendered or tokenized.
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
    spec: Spec, conversations: list[list[dict]], tokenizer, max_length: int, protocol: Protocol
) -> tuple[Prepared, Prepared | None]:
    """The learned rows, and the validation rows: a share of the dataset or another dataset."""
    evaluation = spec.evaluation
    if evaluation.dataset:
        evaluation_rows = read_conversations(Path(evaluation.dataset.path), evaluation.dataset.sha256)
        return prepare(conversations, tokenizer, max_length, protocol), prepare(
            evaluation_rows, tokenizer, max_length, protocol
        )
    if not evaluation.split:
        return prepare(conversations, tokenizer, max_length, protocol), None
    if len(conversations) < 2:
        raise JobError("dataset_invalid", "The dataset has one row; a validation split needs at least two.")

    def chosen(indices: list[int]) -> Prepared:
        return prepare([conversations[i] for i in indices], tokenizer, max_length, protocol, [i + 1 for i in indices])

    learned, held_out = hold_out(len(conversations), evaluation.split, spec.training.seed)
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
