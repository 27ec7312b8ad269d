"""Control tokens that an assistant's message may spell: those around thoughts and calls of tools."""

import re
from typing import Any

from trainer.data.content import Message
from trainer.data.ends import end_of_answer
from trainer.data.placeholder_tokens import any_of
from trainer.data.thoughts import FIELDS, SETTINGS
from trainer.data.tokenizer import Tokenizer
from trainer.data.tools import PROBE_TOOLS, form_of, probed

# What ends a turn, as llama.cpp knows it by name.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|END_OF_TURN_TOKEN|>",
        "[e~[",
    ]
)
_USER: Message = {"role": "user", "content": "Zq asks."}
_ANSWER: Message = {"role": "assistant", "content": "Zq answers."}
_NEXT: Message = {"role": "user", "content": "Zq asks more."}
_THOUGHT = "Zq thinks."


def answer_texts(tokenizer: Tokenizer, controls: list[str]) -> list[str]:
    """Those of the control texts that the chat template writes around thoughts and calls, but not in every turn and not
    to end one; as engine/chat/template.ts finds them.
    """
    plain = probed(tokenizer, [_USER, _ANSWER])
    # Some templates refuse conversations without tools.
    if not plain:
        plain = _after_question(probed(tokenizer, [_USER, _ANSWER], tools=PROBE_TOOLS))
    calling = [probed(tokenizer, [_USER, answer], tools=PROBE_TOOLS) for answer in _calling(tokenizer)]
    calls = "\0".join(map(_after_question, calling))
    thoughts = _thoughts(tokenizer)
    beside = _beside_thoughts(tokenizer, thoughts, controls)
    in_thoughts, answer = "\0".join(thoughts), _after_question(plain)

    def is_found(text: str) -> bool:
        # A template may explain the marks of thoughts in every prompt.
        return text in beside or (text in in_thoughts and text not in answer) or (text in calls and text not in plain)

    ends = {*_ENDS, tokenizer.eos_token, end_of_answer(tokenizer).text}
    found = [text for text in controls if is_found(text) and text not in ends]
    # The prompt of some bases begins thoughts that the template leaves out of answers.
    begun = ["<think>", "</think>"] if "<think>" in str(tokenizer.chat_template) else []
    return list(dict.fromkeys([*found, *begun]))


def _thoughts(tokenizer: Tokenizer) -> list[str]:
    """Answers with thoughts, and starts of answers, with thinking on and off."""
    template = str(tokenizer.chat_template)
    answers: list[tuple[Message, dict[str, Any]]] = []
    for field in [field for field in FIELDS if field in template]:
        answers.append(({**_ANSWER, field: _THOUGHT}, {}))
        answers += [({**answer, field: _THOUGHT}, {"tools": PROBE_TOOLS}) for answer in _calling(tokenizer)[:1]]
    if re.search(r"""['"]thinking['"]""", template):
        parts: Any = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER["content"]}]
        answers.append(({**_ANSWER, "content": parts}, {}))
    shown = [
        probed(tokenizer, [_USER, answer], **tools, **settings) for answer, tools in answers for settings in SETTINGS
    ]
    starts = [probed(tokenizer, [_USER], add_generation_prompt=True, **settings) for settings in SETTINGS]
    return [_after_question(text) for text in [*filter(lambda text: _THOUGHT in text, shown), *starts]]


def _beside_thoughts(tokenizer: Tokenizer, thoughts: list[str], controls: list[str]) -> set[str]:
    """The control texts right before and after thoughts, which answers without thoughts may have too. Texts of every
    turn are none.
    """
    turns = probed(tokenizer, [_USER, _ANSWER, _NEXT])
    turn = turns.rpartition(_NEXT["content"])[0].rpartition(_ANSWER["content"])[2]
    pattern = re.compile(any_of(controls))
    found: set[str] = set()
    for text in thoughts:
        before, thought, after = text.partition(_THOUGHT)
        if thought:
            found.update([*pattern.findall(before)[-1:], *pattern.findall(after)[:1]])
    return {text for text in found if text not in turn}


def _calling(tokenizer: Tokenizer) -> list[Message]:
    """Answers with one call and with several; none where calls are written in words."""
    if form_of(tokenizer) is None:
        return []
    given = {"key_a": "Zqvalue", "key_b": 40961}
    calls = [
        {
            "id": f"zqcall00{index}",
            "type": "function",
            "function": {"name": tool["function"]["name"], "arguments": given},
        }
        for index, tool in enumerate(PROBE_TOOLS)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls[:count]} for count in (1, len(calls))]


def _after_question(text: str) -> str:
    return text.rpartition(_USER["content"])[2]
