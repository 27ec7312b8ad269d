"""The rows of a dataset's file: conversations, pairs of answers to one prompt, and rated answers.

The file is in the canonical form, which the service's check writes of every format
(server/features/datasets/canonical.ts): what is valid is decided there, and read here.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from trainer.data.content import Message
from trainer.data.pictures import PictureError, take_out
from trainer.data.tools import tool_of
from trainer.runtime.errors import JobError

# JSON allows numbers of any length; Python refuses more than 4,300 digits by default.
sys.set_int_max_str_digits(0)


class Conversation(list[Message]):
    """The messages of a row, its line in the uploaded file, counted from 1, and the tools that the model may call.

    `label`: of a rated answer, whether it is a good one.
    """

    def __init__(
        self, messages: list[Message], line: int, tools: list[dict[str, Any]] | None = None, label: bool | None = None
    ) -> None:
        super().__init__(messages)
        self.line = line
        self.tools = tools
        self.label = label


class Pair(list[Conversation]):
    """Two conversations with one prompt: the chosen answer, then the rejected one."""

    @property
    def line(self) -> int:
        """The line in the uploaded file, counted from 1."""
        return self[0].line


def read_rows(path: Path, sha256: str, objective: str = "sft") -> list[Conversation | Pair]:
    """Reads the rows of JSON lines that an objective learns from: `Conversation`s for sft and kto, `Pair`s for dpo.
    Raises JobError("dataset_invalid") with the first bad line.
    """
    rows: list[Conversation | Pair] = []
    digest, offset = hashlib.sha256(), 0
    bad: JobError | None = None
    try:
        with path.open("rb") as file:
            # Only a line feed ends a row, as the service counts them.
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if not bad:
                    try:
                        rows.append(parse_row(line, number, objective, (path, offset)))
                    except JobError as problem:
                        # Whether it is the right file is known at its end.
                        bad = problem
                offset += len(line)
    except OSError as problem:
        raise JobError("dataset_invalid", f"The dataset's file cannot be read: {problem.strerror}.") from problem
    if digest.hexdigest() != sha256:
        raise JobError(
            "dataset_invalid", "The dataset's file is not the one that the job was created with: its hash differs."
        )
    if bad:
        raise bad
    if not rows:
        raise JobError("dataset_invalid", "The dataset has no rows.")
    return rows


def parse_row(
    line: bytes, number: int, objective: str = "sft", place: tuple[Path, int] | None = None
) -> Conversation | Pair:
    """Parses the row of that number, whose line starts at the byte that `place` says. Raises
    JobError("dataset_invalid") if it is not in the canonical form, or the objective cannot learn from it.
    """
    try:
        row = json.loads(line)
        if b'"image_url"' in line:
            take_out(row, place)
        return _PARSERS[objective](row, row.get("line", number))
    except PictureError as problem:
        what = f"has a picture that cannot be read: {problem}"
        raise JobError("dataset_invalid", f"Row {number} {what}.", line=number) from problem
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as problem:
        what = f"is not in the form that the service writes for the objective '{objective}' ({problem!r})"
        raise JobError("dataset_invalid", f"Row {number} {what}.", line=number) from problem


def example_of(line: bytes) -> list[Message]:
    """The messages of a row of any kind; of a pair, with the chosen answer. Raises JobError("dataset_invalid")."""
    row = parse_row(line, 0, "sft" if "messages" in json.loads(line) else "dpo")
    return row[0] if isinstance(row, Pair) else row


def _conversation(row: dict[str, Any], line: int) -> Conversation:
    return _of_messages(row["messages"], row, line)


def _pair(row: dict[str, Any], line: int) -> Pair:
    return Pair([_answer_to(row["prompt"], row[name], row, line) for name in ("chosen", "rejected")])


def _rated(row: dict[str, Any], line: int) -> Conversation:
    *prompt, answer = row["messages"]
    conversation = _answer_to(prompt, answer, row, line)
    conversation.label = row["label"]
    return conversation


_PARSERS = {"sft": _conversation, "dpo": _pair, "kto": _rated}


def _answer_to(prompt: list[Message], answer: Message, row: dict[str, Any], line: int) -> Conversation:
    """The conversation of a prompt and one answer, of which the answer alone is learned."""
    conversation = _of_messages([*prompt, answer], row, line)
    for message in conversation[:-1]:
        if message["role"] == "assistant":
            message["weight"] = 0
    conversation[-1].pop("weight", None)
    return conversation


def _of_messages(messages: list[Message], row: dict[str, Any], line: int) -> Conversation:
    if not messages:
        raise ValueError("no messages")
    # An id may be used again: a result belongs to the last call before it.
    names: dict[str, str] = {}
    fields: list[Message] = []
    for message in messages:
        fields.append(_fields_of(message, names))
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", [])}
    tools = [tool_of(tool) for tool in row.get("tools", [])]
    return Conversation(_with_results_in_order(fields), line, tools or None)


def _with_results_in_order(messages: list[Message]) -> list[Message]:
    """Results in the order of their calls, as engine/chat/messages.ts has them."""
    ordered: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        ordered.append(message)
        start = index
        while index < len(messages) and messages[index]["role"] == "tool":
            index += 1
        ids = [call["id"] for call in message.get("tool_calls", [])]
        places = {id: place for place, id in reversed(list(enumerate(ids)))}
        results = messages[start:index]
        ordered += sorted(results, key=lambda result: places.get(result["tool_call_id"], len(ids)))
    return ordered


def _fields_of(message: Message, names: dict[str, str]) -> Message:
    """The fields that training and templates read."""
    role = "system" if message["role"] == "developer" else message["role"]
    fields = {"role": role, "content": message["content"]}
    for name in ("weight", "reasoning_content"):
        if name in message:
            fields[name] = message[name]
    if "tool_calls" in message:
        fields["tool_calls"] = message["tool_calls"]
    if role == "tool":
        fields |= {"tool_call_id": message["tool_call_id"], "name": names[message["tool_call_id"]]}
    return fields
