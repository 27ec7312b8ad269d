"""Tools and their calls in training rows, in the form that chat templates read."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, cast

from trainer.data.content import Message
from trainer.runtime.errors import JobError


def call_of(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a row: its arguments are JSON text there, and values for templates, which write them as JSON."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of a row with every field that templates read."""
    function = tool["function"]
    parameters: dict[str, Any] | None = function.get("parameters")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": {"type": "object", "properties": {}} if parameters is None else parameters,
        },
    }


def texts_of(messages: list[Message], tools: list[dict[str, Any]] | None) -> Iterator[str]:
    """Every text of tools and calls, which templates write without a mark."""
    yield from _strings(tools)
    for message in messages:
        yield from _strings(message.get("tool_calls"))
        yield from _strings([message.get("tool_call_id"), message.get("name")])


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in cast(dict[str, object], value).items():
            yield name
            yield from _strings(part)
    elif isinstance(value, list):
        for part in cast(list[object], value):
            yield from _strings(part)


def uses_tools(messages: list[Message], tools: list[dict[str, Any]] | None) -> bool:
    """Whether a conversation offers tools, or has calls of tools or their results."""
    return bool(tools) or any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def adapted(messages: list[Message], template: str) -> list[Message]:
    """The messages as the template takes them, the same as in serving (engine/chat/messages.ts).

    Raises JobError("dataset_invalid") if the template writes no tools: the model would learn answers to what it never
    sees.
    """
    if not re.search(r"\btools\b", template):
        raise JobError(
            "dataset_invalid",
            "The row has tools, but the chat template of this base writes none. Choose a base that calls tools, or "
            "remove them from the row.",
        )
    if "[TOOL_CALLS]" in template:
        return [_with_short_ids(message) for message in messages]
    if "<|start_header_id|>" in template and "ipython" in template:
        return list(_one_call_each(messages))
    return messages


def _with_short_ids(message: Message) -> Message:
    """Mistral's templates require ids of nine letters and digits."""
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return changed


def _short_id(id: str) -> str:
    return id if re.fullmatch(r"[a-zA-Z0-9]{9}", id) else hashlib.sha256(id.encode()).hexdigest()[:9]


def _one_call_each(messages: list[Message]) -> Iterator[Message]:
    """Llama's templates reject several calls in one message: each becomes one message, followed by its result."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        for call in calls:
            yield {**message, "tool_calls": [call]}
            for result in [result for result in results if result["tool_call_id"] == call["id"]][:1]:
                results.remove(result)
                yield result
        yield from results
