"""The rows of a dataset's file: conversations, pairs of answers to one prompt, and rated answers."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from trainer.data.content import Content, joined
from trainer.data.pictures import Picture, PictureError, take_out
from trainer.data.tools import call_of, tool_of
from trainer.runtime.errors import JobError

ROLES = ("system", "developer", "user", "assistant", "tool")
# JSON allows numbers of any length; Python refuses more than 4,300 digits by default.
sys.set_int_max_str_digits(0)


class Conversation(list):
    """The messages of a row, its line in the file, counted from 1, and the tools that the model may call.

    `label`: of a rated answer, whether it is a good one.
    """

    def __init__(
        self, messages: list[dict], line: int, tools: list[dict] | None = None, label: bool | None = None
    ) -> None:
        super().__init__(messages)
        self.line = line
        self.tools = tools
        self.label = label


class Pair(list):
    """Two conversations with one prompt: the chosen answer, then the rejected one."""

    @property
    def line(self) -> int:
        return self[0].line


def read_rows(path: Path, sha256: str, objective: str = "sft") -> list:
    """Reads the rows of JSON lines that an objective learns from: `Conversation`s for sft and kto, `Pair`s for dpo.
    Raises JobError("dataset_invalid") with the first bad line.
    """
    rows, digest, offset = [], hashlib.sha256(), 0
    bad: JobError | None = None
    try:
        with path.open("rb") as file:
            # Only a line feed ends a row, as the service counts them.
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip(b" \t\r\n") and not bad:
                    try:
                        rows.append(parse_row(line.removesuffix(b"\n"), number, objective, (path, offset)))
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
    """Parses a line of the file, which starts at the byte that `place` says. Raises JobError("dataset_invalid") with
    the line number if the objective cannot learn from it.
    """

    def wrong(what: str) -> JobError:
        return JobError("dataset_invalid", f"Line {number} {what}.", line=number)

    try:
        row = json.loads(line)
        if b'"image_url"' in line:
            take_out(row, place)
    except PictureError as problem:
        raise wrong(f"has a picture that cannot be read: {problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise wrong("is not JSON") from problem
    row = row if isinstance(row, dict) else {}
    # Files converted from another format have the row's line in the original.
    source = row.get("source_line")
    return _PARSERS[objective](row, source if isinstance(source, int) else number, wrong)


def example_of(line: bytes) -> list[dict]:
    """The messages of a row of any kind; of a pair, with the chosen answer. Raises JobError("dataset_invalid")."""
    row = json.loads(line)
    if "messages" in row:
        return row["messages"]
    pair = "rejected" in row or "non_preferred_output" in row
    return parse_row(line, 0, "dpo")[0] if pair else parse_row(line, 0, "kto")


def _conversation(row: dict, line: int, wrong: Callable[[str], JobError]) -> Conversation:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("has no messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise wrong(f"has a message whose role is none of {', '.join(ROLES)}")
        content = _content_of(message)
        if content is None:
            raise wrong("has a message whose content is not text")
        if message["role"] == "assistant" and not isinstance(content, str):
            raise wrong("has a picture in an assistant's message; models answer with text")
        if message.get("weight", 1) not in (0, 1):
            raise wrong("has a message whose weight is neither 0 nor 1")
    if messages[-1]["role"] != "assistant":
        raise wrong("does not end with an assistant's message, so its end teaches nothing")
    try:
        # An id may be used again: a result belongs to the last call before it.
        names, fields = {}, []
        for message in messages:
            fields.append(_fields_of(message, names))
            names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or []}
        tools = [tool_of(tool) for tool in row.get("tools") or []]
    except (AttributeError, KeyError, TypeError) as problem:
        raise wrong("has a tool or a call that is not complete") from problem
    return Conversation(fields, line, tools or None)


def _pair(row: dict, line: int, wrong: Callable[[str], JobError]) -> Pair:
    """A row in OpenAI's form (`input`, `preferred_output`, `non_preferred_output`), or with `prompt`, `chosen` and
    `rejected` as texts or messages.
    """
    if "input" in row:
        given = row["input"] if isinstance(row["input"], dict) else {}
        prompt, tools = given.get("messages"), given.get("tools")
        answers = [row.get("preferred_output"), row.get("non_preferred_output")]
    else:
        answers = [_messages(row.get(name), "assistant") for name in ("chosen", "rejected")]
        prompt, tools = _prompt_of(row), row.get("tools")
        if all(isinstance(answer, list) and len(answer) > 1 for answer in answers):
            # Both answers are whole conversations: what they have before their last message is the prompt.
            prompt, others = answers[0][:-1], answers[1][:-1]
            if prompt != others:
                raise wrong("has chosen and rejected conversations that differ before their last message")
            answers = [answer[-1:] for answer in answers]
    return Pair([_answer_to(prompt, answer, tools, line, wrong) for answer in answers])


def _rated(row: dict, line: int, wrong: Callable[[str], JobError]) -> Conversation:
    """A row with a `label`, true or false, beside `messages`, or beside `prompt` and `completion` as texts or
    messages.
    """
    label = row.get("label")
    if not isinstance(label, bool):
        raise wrong("has no label that is true or false")
    if "messages" in row:
        messages = row["messages"] if isinstance(row["messages"], list) else []
        prompt, answer = messages[:-1], messages[-1:]
    else:
        prompt, answer = _prompt_of(row), _messages(row.get("completion"), "assistant")
    conversation = _answer_to(prompt, answer, row.get("tools"), line, wrong)
    conversation.label = label
    return conversation


_PARSERS = {"sft": _conversation, "dpo": _pair, "kto": _rated}


def _prompt_of(row: dict) -> object:
    prompt = _messages(row.get("prompt"), "user")
    system = row.get("system")
    return [{"role": "system", "content": system}, *prompt] if system and isinstance(prompt, list) else prompt


def _messages(value: object, role: str) -> object:
    """A text as the one message of a role; everything else as it is."""
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _answer_to(
    prompt: object, answer: object, tools: object, line: int, wrong: Callable[[str], JobError]
) -> Conversation:
    """The conversation of a prompt and one answer, of which the answer alone is learned."""
    if not isinstance(prompt, list) or not prompt:
        raise wrong("has no prompt")
    if not isinstance(answer, list) or len(answer) != 1:
        raise wrong("has an answer that is not one message of the assistant")
    conversation = _conversation({"messages": [*prompt, *answer], "tools": tools}, line, wrong)
    for message in conversation[:-1]:
        if message["role"] == "assistant":
            message["weight"] = 0
    conversation[-1].pop("weight", None)
    return conversation


def _content_of(message: dict) -> Content | None:
    """A message's content; None if it is neither text nor parts. A message that only calls tools may have none."""
    content = message.get("content")
    if content is None:
        return "" if message.get("tool_calls") else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content or not all(map(_is_part, content)):
        return None
    parts = joined([{name: part[name] for name in ("type", "text", "picture") if name in part} for part in content])
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _is_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "image":
        # Made of a data URL while the row was read.
        return isinstance(part.get("picture"), Picture)
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _fields_of(message: dict, names: dict[str, str]) -> dict:
    """The fields that training and templates read."""
    role = "system" if message["role"] == "developer" else message["role"]
    fields = {"role": role, "content": _content_of(message)}
    if "weight" in message:
        fields["weight"] = message["weight"]
    if message.get("tool_calls"):
        fields["tool_calls"] = [call_of(call) for call in message["tool_calls"]]
    if role == "tool":
        fields |= {"tool_call_id": message["tool_call_id"], "name": names[message["tool_call_id"]]}
    return fields
