"""The tokens that end an answer: those that the chat template writes, and those that the checkpoint names."""

from typing import Any, NamedTuple

from trainer.data.content import Message
from trainer.data.tokenizer import Tokenizer, remembered, special_texts
from trainer.data.tools import PROBE_TOOLS, form_of, probed

_ASKED: Message = {"role": "user", "content": "Zq asks."}
_ANSWER = "Zq answers."
_CALL: dict[str, Any] = {
    "id": "probe0001",
    "type": "function",
    "function": {"name": "zz_probe_one", "arguments": {}},
}


class End(NamedTuple):
    """`text`: the token that ends an answer. `added`: whether it is put behind what the template writes, in the place
    of `instead`.
    """

    text: str
    added: bool = False
    instead: str = ""


def ends_of(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The texts with which a turn that the template has ended can end: those of special tokens, and of the one that it
    writes behind answers, which some checkpoints call an ordinary one.
    """
    return tuple(text for text in (*special_texts(tokenizer), end_of_answer(tokenizer).text) if text)


def end_of_answer(tokenizer: Tokenizer, answer: Message | None = None) -> End:
    """How an answer ends: with the first token of its own that the template writes behind it; else with the one that
    begins the next message, as GLM's; else with the tokenizer's end token, as in a template that separates messages
    with words. `answer`: one that calls tools may end differently.
    """
    calls = bool(answer and "tool_calls" in answer) and form_of(tokenizer) is not None
    return remembered(tokenizer, f"_end_of_answer_{calls}", lambda: _find_end(tokenizer, calls))


def _find_end(tokenizer: Tokenizer, calls: bool) -> End:
    said: Message = {"role": "assistant", "content": _ANSWER, **({"tool_calls": [_CALL]} if calls else {})}
    following: Message = (
        {"role": "tool", "content": "Done.", "tool_call_id": _CALL["id"]}
        if calls
        else {"role": "user", "content": "Zq asks more."}
    )
    tools = {"tools": PROBE_TOOLS} if calls else {}
    text, longer = (probed(tokenizer, each, **tools) for each in ([_ASKED, said], [_ASKED, said, following]))
    own = str(tokenizer.eos_token or "")
    if calls:
        plain = end_of_answer(tokenizer)
        if not text or text.rstrip().endswith(ends_of(tokenizer)):
            return plain
        instead = plain.instead
    else:
        _, said_it, instead = text.rpartition(_ANSWER)
        written = [token for token in _added_texts(tokenizer) if token in instead]
        if written or not said_it:
            return End(min(written, key=instead.find) if written else own)
    behind = longer.removeprefix(text) if longer.startswith(text) else ""
    begins = next((token for token in _added_texts(tokenizer) if behind.startswith(token)), None)
    return End(begins, added=True) if begins else End(own, added=True, instead=instead)


def _added_texts(tokenizer: Tokenizer) -> list[str]:
    """All tokens of the tokenizer that are none of text, the longest first."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values())
    return sorted({*special_texts(tokenizer), *added} - {""}, key=len, reverse=True)


def end_token_of(tokenizer: Tokenizer) -> int | None:
    """The token that ends an answer of the chat template, if any."""
    end = end_of_answer(tokenizer).text
    return tokenizer.convert_tokens_to_ids(end) if end else None


def end_tokens(*token_ids: int | list[int] | None) -> list[int]:
    """The distinct tokens, in order of first appearance."""
    tokens = [token for ids in token_ids for token in (ids if isinstance(ids, list) else [ids]) if token is not None]
    return list(dict.fromkeys(tokens))
