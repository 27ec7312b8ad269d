"""Text of rows is text: only what the chat template itself writes becomes control tokens, whatever the words of a row
spell.

A row that may spell a control token is rendered twice: as it is, and with a mark (a noncharacter that stands nowhere
else) inside of all
that could be one. The control texts that no mark interrupts in the marked rendering are the template's own. Everything
else is tokenized
as text, without the marks. The engine does the same with prompts (engine/chat).
"""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from tokenizers import AddedToken

from trainer.runtime.errors import JobError
from trainer.data.stand_ins import Rendering, Span, StandIns, any_of

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
# What an assistant's message may have as tokens, where the template has it too: its thoughts, its calls of tools.
ANSWER_FORMS = {"<think>": ["<think>", "</think>"], "<tool_call>": ["<tool_call>", "</tool_call>"], "[TOOL_CALLS]": ["[TOOL_CALLS]"]}
# What llama.cpp's converter makes a control token of, although the checkpoint does not call it special
# (`does_token_look_special`).
LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL)
REFUSAL = (
    "The model's chat template rewrites text that spells control tokens, so it cannot be told what of it is text. Remove it from the row, "
    "or let the operator set TUNERY_PARSE_CONTROL_TOKENS=true."
)


# Renders the first so many of a conversation's messages; the flag adds the beginning of an assistant's turn.
Render = Callable[[int, bool], str]


class View(NamedTuple):
    """A conversation as the template is shown it."""

    messages: list[dict]
    render: Render
    mark: str | None = None


class ViewDiffers(Exception):
    """The template renders a marked conversation otherwise than the one without marks."""


def control_text(tokenizer) -> "ControlText":
    """What is known of a tokenizer's control texts, found once. Those with the attribute `parse_control_tokens` parse
    them in rows too.
    """
    found = getattr(tokenizer, "_control_text", None)
    if found is None:
        found = tokenizer._control_text = ControlText(tokenizer)
    return found


class ControlText:
    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer
        added = {} if getattr(tokenizer, "parse_control_tokens", False) else getattr(tokenizer, "added_tokens_decoder", {})
        tokens = {id: token for id, token in added.items() if token.special or LOOKS_SPECIAL.fullmatch(token.content)}
        self._tokens: list[tuple[int, AddedToken]] = [(id, token) for id, token in tokens.items() if token.content]
        texts = [token.content for _, token in self._tokens]
        if not texts:
            return
        self._template = str(tokenizer.chat_template)
        self._texts = re.compile(any_of(texts))
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in texts}))
        self._firsts = re.compile(f"[{firsts}]")
        forms = [text for form, texts in ANSWER_FORMS.items() if form in self._template for text in texts]
        exempt = any_of(forms) if forms else r"(?!)"
        self._firsts_or_exempt = re.compile(f"({exempt})|[{firsts}]")
        self._texts_or_exempt = re.compile(f"({exempt})|(?:{self._texts.pattern})")
        self._texts_only = re.compile(f"()(?:{self._texts.pattern})")
        self._ends = {text[start:] for text in texts for start in range(1, len(text))}
        self._longest = max(map(len, texts))
        self._insides = "\0".join(text[1:] for text in texts)
        self._stand_ins = StandIns(tokenizer, self._tokens, list(added.values()))

    def views(self, messages: list[dict], render: Callable[[list[dict], bool], str]) -> Iterator[View]:
        """How a conversation may be shown to the template: the first way that it renders alike. `render` is the
        template's.

        A view's rendering raises ViewDiffers where the next is to be tried; where none is left the row has to be
        refused.
        """

        def plain(count: int, open_turn: bool) -> str:
            return render(messages[:count], open_turn)

        if not self._tokens or not any(self._may_spell(message["content"]) for message in messages):
            yield View(messages, plain)
            return
        mark = self._mark_for(messages)

        def shown(marked: list[dict], count: int, open_turn: bool) -> str:
            try:
                return render(marked[:count], open_turn)
            except JobError as problem:
                raise ViewDiffers from problem

        def alike(marked: list[dict], count: int, open_turn: bool) -> str:
            expected, text = plain(count, open_turn), shown(marked, count, open_turn)
            if text.replace(mark, "") != expected:
                raise ViewDiffers
            return text

        fully = [self._fully_marked(message, mark) for message in messages]
        yield View(fully, lambda count, open_turn: alike(fully, count, open_turn), mark)
        narrowly = [self._narrowly_marked(message, mark) for message in messages]

        def narrow(count: int, open_turn: bool) -> str:
            text = alike(narrowly, count, open_turn)
            if self._texts.findall(text) != self._texts.findall(shown(fully, count, open_turn)):
                raise ViewDiffers
            return text

        yield View(narrowly, narrow, mark)

    def encode(self, renderings: list[Rendering], most_tokens: int | None = None) -> list[tuple[list[int], list[Span], list[Span]]]:
        """Of each its token ids, their offsets in a text of the encoding's own, and the rendering's spans in that text.

        The text as a whole, once, and nothing added: the tokens that the engine makes of the same rendering. Of a text
        that has far more
        tokens than `most_tokens`, only a beginning that has more than that many is looked at.
        """
        found: list = [None] * len(renderings)
        texts = [self._beginning(rendering, most_tokens) for rendering in renderings]
        by_mark: dict[str | None, list[int]] = {}
        for index, rendering in enumerate(renderings):
            by_mark.setdefault(rendering.mark, []).append(index)
        for mark, group in by_mark.items():
            given = [texts[index] for index in group]
            told = self._encode_plain(given) if mark is None else self._stand_ins.encode(given, mark)
            for index, each in zip(group, told, strict=True):
                # Where tokens stand for more text than their own letters (normalizers that delete), a beginning may
                # have too few.
                too_few = texts[index] is not renderings[index] and len(each[0]) <= most_tokens
                found[index] = self.encode([renderings[index]])[0] if too_few else each
        return found

    def count(self, renderings: list[Rendering], most_tokens: int) -> list[tuple[int, bool]]:
        """The number of tokens of each; and whether that is all, or of a text with far more than `most_tokens` the
        least that it has.
        """
        texts = [self._beginning(rendering, most_tokens) for rendering in renderings]
        plain = [index for index, text in enumerate(texts) if text.mark is None]
        encoded = self._tokenizer.backend_tokenizer.encode_batch_fast([texts[index].text for index in plain], add_special_tokens=False)
        counts = dict(zip(plain, map(len, encoded), strict=True))
        marked = [index for index in range(len(texts)) if index not in counts]
        for index, (ids, _, _) in zip(marked, self.encode([texts[index] for index in marked]), strict=True):
            counts[index] = len(ids)
        found = []
        for index, (text, whole) in enumerate(zip(texts, renderings, strict=True)):
            exact = text is whole or counts[index] <= most_tokens
            found.append((len(self.encode([whole])[0][0]) if exact and text is not whole else counts[index], exact))
        return found

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))

    def _beginning(self, rendering: Rendering, most_tokens: int | None) -> Rendering:
        # Nearly no text is longer than this, so nearly never is the vocabulary looked through.
        if most_tokens is None or len(rendering.text) <= 8 * most_tokens:
            return rendering
        # Twice as much as could be needed: where a text is cut, its last tokens are other ones.
        most = 2 * most_tokens * self._longest_token
        return rendering._replace(text=rendering.text[:most]) if len(rendering.text) > most else rendering

    def _encode_plain(self, renderings: list[Rendering]) -> list[tuple[list[int], list[Span], list[Span]]]:
        told = self._tokenizer([each.text for each in renderings], add_special_tokens=False, return_offsets_mapping=True)
        return list(zip(told["input_ids"], told["offset_mapping"], [each.spans for each in renderings], strict=True))

    def _may_spell(self, text: str) -> bool:
        return bool(self._firsts.search(text)) or self._begins_inside(text) or self._may_normalize_to_one(text)

    def _begins_inside(self, text: str) -> bool:
        """Whether a template that writes the beginning of a control text before it would make one."""
        if not text:
            return False
        if len(text) < self._longest and text in self._insides:
            return True
        return any(text[:length] in self._ends for length in range(1, min(len(text), self._longest) + 1))

    @cached_property
    def _normalizer(self):
        """Of tokenizers that look for control texts after normalizing."""
        normalizer = self._tokenizer.backend_tokenizer.normalizer
        return normalizer if normalizer and any(token.normalized for _, token in self._tokens) else None

    def _may_normalize_to_one(self, text: str) -> bool:
        return bool(self._normalizer) and bool(self._firsts.search(self._normalizer.normalize_str(text)))

    def _mark_for(self, messages: list[dict]) -> str:
        for mark in MARKS:
            if mark not in self._template and not any(mark in message["content"] for message in messages):
                return mark
        raise JobError("dataset_invalid", "The row has all of the noncharacters U+FDD0 to U+FDEF. Remove them.")

    def _fully_marked(self, message: dict, mark: str) -> dict:
        """Marks behind all that a control text could begin with, as the template may delete what follows; and before
        what could end one.
        """
        text = message["content"]
        if message["role"] == "assistant":
            marked = self._firsts_or_exempt.sub(lambda found: found[0] if found[1] else found[0] + mark, text)
        else:
            marked = self._firsts.sub(lambda found: found[0] + mark, text)
        return {**message, "content": mark + marked if self._begins_inside(text) else marked}

    def _narrowly_marked(self, message: dict, mark: str) -> dict:
        """Marks in whole control texts alone, so that the template finds the rest as it is."""
        texts = self._texts_or_exempt if message["role"] == "assistant" else self._texts_only
        content = texts.sub(lambda found: found[0] if found[1] else found[0][0] + mark + found[0][1:], message["content"])
        return {**message, "content": content}
