"""Tools and their calls in training rows, in the form that chat templates read."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from trainer.data.content import Content, Message, for_template
from trainer.data.tokenizer import Tokenizer, remembered


def _call_of(call: dict[str, Any]) -> dict[str, Any]:
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
    whole: dict[str, Any] = {"type": "object"} if parameters is None else {**parameters}
    if whole.get("properties") in (None, []):
        whole["properties"] = {}
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": whole,
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


def adapted(
    messages: list[Message], tools: list[dict[str, Any]] | None, tokenizer: Tokenizer
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages and tools as the template takes them, the same as in serving (engine/chat). Where the template
    writes no calls, both are written in words.
    """
    form = form_of(tokenizer)
    if form is None:
        return _in_words(messages, tools, tokenizer), None
    changed = [_with_values(message) for message in messages]
    if form.short_ids:
        changed = [_with_short_ids(message) for message in changed]
    return list(_one_call_each(changed)) if form.is_single else changed, tools


class CallForm(NamedTuple):
    """How a template takes calls. `is_single`: one a message; `short_ids`: with ids of nine letters and digits."""

    is_single: bool = False
    short_ids: bool = False


def form_of(tokenizer: Tokenizer) -> CallForm | None:
    """How the chat template takes calls; None if it writes none that can be read back. Cached on the tokenizer."""
    return remembered(tokenizer, "_call_form", lambda: _find_form(tokenizer))


def _find_form(tokenizer: Tokenizer) -> CallForm | None:
    template = str(tokenizer.chat_template)
    # The forms that serving knows by hand (engine/chat/tool-formats.ts).
    if re.search(r"\btools\b", template) and not re.search(r"<function=|<arg_key>|\[ARGS\]|\[CALL_ID\]", template):
        if _HERMES.search(template) and re.search(r'"arguments\\?": ', template):
            return CallForm()
        if "[TOOL_CALLS]" in template and "[AVAILABLE_TOOLS]" in template:
            return CallForm(short_ids=True)
        if "<|start_header_id|>" in template and "ipython" in template and re.search(r'"parameters\\?": ', template):
            return CallForm(is_single=True)
    return _probed_form(tokenizer) if re.search(r"\btools\b|tool_calls", template) else None


_HERMES = re.compile(r"""<tool_call>(?:\\n|[\s"'~+{}-])*\{\\?"name\\?": """)
_NAMES = ("zz_probe_one", "zz_probe_two", "zz_probe_six")
_NASTY = "Zq\"a'b\\c\nd\tZq"
_NESTED: dict[str, Any] = {"inner": [True, False, None, 40961, "Zqinner", {}]}


def _probed_form(tokenizer: Tokenizer) -> CallForm | None:
    """Whether and how the template writes calls, by what it makes of some; as engine/chat/learn-calls.ts finds it."""

    def rendered(*arguments: dict[str, Any], id: str = "zqcall00") -> str:
        calls = [
            {"id": f"{id}{index}", "type": "function", "function": {"name": _NAMES[index], "arguments": each}}
            for index, each in enumerate(arguments)
        ]
        answer = {"role": "assistant", "content": "", "tool_calls": calls}
        return probed(tokenizer, [{"role": "user", "content": "Zq asks."}, answer], tools=PROBE_TOOLS)

    plain = rendered({"key_a": "Zqplain", "key_b": 40961})
    at = plain.rfind("Zqplain")
    if at < 0 or "40961" not in plain[at:] or _NAMES[0] not in plain[:at]:
        return None
    marked = rendered({"key_a": _NASTY, "key_b": 40961})
    text = json.dumps(_NASTY, ensure_ascii=False)
    escaped = _NASTY.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    forms = (_NASTY, text[1:-1], escaped, escaped.replace("\\t", "\t"))
    # A string of any kind must be written as any other is.
    if not any(marked == "Zqplain".join([plain[:at], plain[at + 7 :]]).replace("Zqplain", form) for form in forms):
        return None
    nested = rendered({"key_a": _NESTED, "key_b": 40961})
    values = (json.dumps(_NESTED), repr(_NESTED))
    bare = re.search(r"\{inner:\[true,false,(null|None),40961,\S+Zqinner\S+,\{\}\]\}", nested)
    if not bare and not any(value in nested for value in values):
        return None
    many = rendered(*[{"key_a": f"Zqvalue{index}"} for index in range(3)])
    is_single = not all(f"Zqvalue{index}" in many for index in range(3))
    return CallForm(is_single, rendered({}, id="call_zqzqzq-") == "")


PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "A key."} for key in ("key_a", "key_b", "key_c")},
                "required": [],
            },
        },
    }
    for name in _NAMES
]


def probed(tokenizer: Tokenizer, messages: list[Message], **variables: Any) -> str:
    """What the template makes of messages that nobody wrote; nothing if it refuses them."""
    sight = getattr(tokenizer, "sight", None)
    shown = [
        {**each, "content": for_template(each["content"], bool(sight) and sight.parts_only)}
        if isinstance(each["content"], str)
        else each
        for each in messages
    ]
    try:
        return tokenizer.apply_chat_template(shown, tokenize=False, **variables)
    except Exception:
        # Templates refuse what they do not take with errors of many types; rows are refused where they are rendered.
        return ""


def _with_values(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_call_of(call) for call in message["tool_calls"]]}


def _in_words(messages: list[Message], tools: list[dict[str, Any]] | None, tokenizer: Tokenizer) -> list[Message]:
    """Tools, calls and results as text, as engine/chat/tool-prompt.ts writes them."""
    texts = _calls_as_text(messages)
    if not tools:
        return texts
    prompt = "\n".join(
        [
            "You can call tools. Each line between <tools> and </tools> describes one of them as JSON, "
            "with the schema of its arguments:",
            "<tools>",
            *[json.dumps(tool["function"], ensure_ascii=False, separators=(",", ":")) for tool in tools],
            "</tools>",
            "To call a tool, write exactly this, with the name of the tool and a JSON object of its arguments:",
            "<tool_call>",
            '{"name": "the name", "arguments": {"an argument": "its value"}}',
            "</tool_call>",
            "The results then come between <tool_response> and </tool_response>. "
            "Where no tool is needed, answer in plain text.",
        ]
    )
    if texts and texts[0]["role"] == "system":
        return [{**texts[0], "content": _joined(texts[0]["content"], prompt)}, *texts[1:]]
    with_system = [{"role": "system", "content": prompt}, *texts]
    if probed(tokenizer, with_system):
        return with_system
    # Some templates have no system role.
    first = next((index for index, each in enumerate(texts) if each["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": prompt}, *texts]
    user = {**texts[first], "content": _joined(prompt, texts[first]["content"])}
    return [*texts[:first], user, *texts[first + 1 :]]


def _calls_as_text(messages: list[Message]) -> list[Message]:
    found: list[Message] = []
    in_results = False
    for message in messages:
        rest = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id", "name")}
        if message["role"] == "tool":
            result = _joined("<tool_response>\n", message["content"], "\n</tool_response>", separator="")
            if in_results:
                found[-1]["content"] = _joined(found[-1]["content"], result, separator="\n")
            else:
                found.append({"role": "user", "content": result})
            in_results = True
            continue
        if in_results and message["role"] == "user":
            found[-1]["content"] = _joined(found[-1]["content"], message["content"])
        else:
            calls = [
                f'<tool_call>\n{{"name": "{call["function"]["name"]}", "arguments": '
                + (call["function"]["arguments"].strip() or "{}")
                + "}\n</tool_call>"
                for call in message.get("tool_calls", [])
            ]
            found.append({**rest, "content": _joined(message["content"], *calls, separator="\n")} if calls else rest)
        in_results = False
    return found


def _joined(*contents: Content, separator: str = "\n\n") -> Content:
    """Contents that are not empty, as one."""
    filled = [content for content in contents if content]
    texts = [content for content in filled if isinstance(content, str)]
    if len(texts) == len(filled):
        return separator.join(texts)
    between = for_template(separator, True) if separator else []
    parts: list[Any] = []
    for index, content in enumerate(filled):
        parts += (
            [*(between if index else []), *for_template(content, True)]
            if isinstance(content, str)
            else [
                *(between if index else []),
                *content,
            ]
        )
    return parts


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
