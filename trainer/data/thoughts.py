"""Thoughts before an answer (`reasoning_content` of a message): where a chat template has a place for them."""

import re
from typing import Any

from trainer.data.content import Message, for_template
from trainer.data.tokenizer import Tokenizer, remembered
from trainer.data.tools import PROBE_TOOLS, form_of, probed

# The names under which templates read them.
FIELDS = ("reasoning_content", "reasoning", "thinking")
# The prompt of some bases begins the thoughts, and the template leaves those of answers out.
BEGUN = "<think>"
# As parts of the content, of the type `thinking`.
CONTENT = "content"
_USER: Message = {"role": "user", "content": "Zq asks."}
_THOUGHT = "Zq thinks."
_ANSWER: Message = {"role": "assistant", "content": "Zq answers."}
_CALL: dict[str, Any] = {"id": "zqcall000", "type": "function", "function": {"name": "zz_probe_one", "arguments": {}}}
# Settings with which a template may show thoughts, as in engine/chat/learn-thoughts.ts.
SETTINGS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": True, "thinking": True, "thinking_mode": "thinking"},
    {"enable_thinking": False, "thinking": False, "thinking_mode": "chat"},
]


def place_of(tokenizer: Tokenizer) -> str | None:
    """The field of a message in which the chat template reads thoughts; CONTENT if it reads them among its parts; BEGUN
    if the prompt begins them; None if the template has no place for them. Cached on the tokenizer.
    """
    return remembered(tokenizer, "_thoughts_place", lambda: _find_place(tokenizer))


def _find_place(tokenizer: Tokenizer) -> str | None:
    template = str(getattr(tokenizer, "chat_template", None))
    answers: list[tuple[str, Message]] = [
        (field, {**_ANSWER, field: _THOUGHT}) for field in FIELDS if field in template
    ]
    if re.search(r"""['"]thinking['"]""", template):
        parts = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER["content"]}]
        answers.append((CONTENT, {**_ANSWER, "content": parts}))
    calling: list[tuple[str, Message]] = [
        (field, {**answer, "content": "", "tool_calls": [_CALL]})
        for field, answer in answers
        if field != CONTENT and form_of(tokenizer) is not None
    ]
    for field, answer in [*answers, *calling]:
        tools: dict[str, Any] = {"tools": PROBE_TOOLS} if "tool_calls" in answer else {}
        for settings in SETTINGS:
            if _THOUGHT in probed(tokenizer, [_USER, answer], **tools, **settings):
                return field
    prompt = probed(tokenizer, [_USER], add_generation_prompt=True)
    return BEGUN if BEGUN in template and prompt.rstrip().endswith(BEGUN) else None


def end_of_begun(tokenizer: Tokenizer) -> str | None:
    """The text between thoughts and the answer, where prompts begin thoughts; None where they begin none. Cached on
    the tokenizer.
    """
    return remembered(tokenizer, "_thoughts_end", lambda: _find_end(tokenizer))


def _find_end(tokenizer: Tokenizer) -> str | None:
    place = place_of(tokenizer)
    if place is None or place == BEGUN:
        return None if place is None else "\n</think>\n\n"
    answer = dict(_ANSWER)
    put_thoughts(answer, _THOUGHT, tokenizer)
    prompt, text = probed(tokenizer, [_USER], add_generation_prompt=True), probed(tokenizer, [_USER, answer])
    rest = text[len(prompt) :].lstrip() if text.startswith(prompt) else ""
    if not rest.startswith(_THOUGHT):
        return None
    end, shown, _ = rest.removeprefix(_THOUGHT).partition(_ANSWER["content"])
    return end if shown and end.strip() else None


def put_thoughts(message: Message, thoughts: str, tokenizer: Tokenizer) -> None:
    """Puts thoughts into a message of an answer, where the template reads them. Without a place they are left out."""
    place = place_of(tokenizer)
    if place == CONTENT:
        message["content"] = [{"type": "thinking", "thinking": thoughts}, *for_template(message["content"], True)]
    elif place in FIELDS:
        if "tool_calls" in message and message["content"] and _excludes_content(tokenizer, place):
            thoughts, message["content"] = f"{thoughts}\n\n{message['content']}", ""
        message[place] = thoughts


def _excludes_content(tokenizer: Tokenizer, place: str) -> bool:
    """Whether the template refuses calls that have both thoughts and content before them."""

    def refuses(content: str) -> bool:
        answer: Message = {"role": "assistant", "content": content, place: _THOUGHT, "tool_calls": [_CALL]}
        return probed(tokenizer, [_USER, answer], tools=PROBE_TOOLS) == ""

    return remembered(tokenizer, "_thoughts_alone", lambda: refuses("Zq answers.") and not refuses(""))


def thoughts_and_answer(message: Message) -> tuple[str, str]:
    """The thoughts of an answer, in its field or written before it, and the answer alone."""
    content = message["content"]
    if "reasoning_content" in message:
        return message["reasoning_content"].strip("\n"), content.strip()
    thoughts, end, answer = content.rpartition("</think>")
    if not end:
        return "", content.strip()
    return thoughts.partition(BEGUN)[2 if BEGUN in thoughts else 0].strip("\n"), answer.strip()
