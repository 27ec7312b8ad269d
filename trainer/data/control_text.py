"""Keeps control tokens that users spell in rows as plain text: only the chat template itself writes control tokens.

A row that may spell a control token is rendered twice: as it is, and with a mark (a noncharacter that occurs nowhere
else) inside everything that could be one. Control texts without a mark in the marked rendering are the template's own.
Everything else is tokenized as text, without the marks. The engine does the same with prompts (engine/chat).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

from tokenizers import AddedToken

from trainer.data.answer_texts import answer_texts
from trainer.data.content import Message, texts_in, with_texts
from trainer.data.ends import end_of_answer
from trainer.data.placeholder_tokens import NOTHING, PlaceholderTokens, Rendering, Span, any_of
from trainer.data.token_counts import MakesControlToken, TokenCounts
from trainer.data.tokenizer import Tokenizer, remembered
from trainer.runtime.errors import JobError

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
# So many of the first texts are counted in both ways.
COMPARED_COUNTS = 64
# Tokens that llama.cpp makes control tokens although the checkpoint does not call them special: its converter
# (`does_token_look_special`), then its library, where it loads a vocabulary (`llama-vocab.cpp`).
LOOKS_SPECIAL = re.compile(
    r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>"
    r"|</s>|<eos>|<end_of_turn>|<end_of_utterance>|<turn\|>|<\|tool_response>|_?<EOT>|\[EOT\]|\[EOS\]|\[PAD\]|\[e~\["
    r"|<fim[-_](?:prefix|suffix|middle|pad)>|<fim-repo>|\u2581?<(?:PRE|SUF|MID)>|<PAD>|<REPO>|<reponame>",
    re.DOTALL,
)
REFUSAL = (
    "The model's chat template rewrites text that spells control tokens, so text and control "
    "tokens cannot be distinguished. Remove it from the row, or let the operator set TUNERY_PARSE_CONTROL_TOKENS=true."
)

REFUSAL_OF_TOOLS = (
    "A tool or a call of the row spells a control token of the model, which its chat template would write as one. "
    "Remove it from the row, or let the operator set TUNERY_PARSE_CONTROL_TOKENS=true."
)


# Renders the first messages of a conversation, as many as the number says; the flag opens an assistant's turn at the
# end.
Render = Callable[[int, bool], str]


class View(NamedTuple):
    """A conversation as the template gets it, with or without marks."""

    messages: list[Message]
    render: Render
    mark: str | None = None


class ViewDiffers(Exception):
    """The marked conversation renders differently from the plain one."""


def control_text(tokenizer: Tokenizer) -> "ControlText":
    """The tokenizer's control texts, cached on it. With its attribute `parse_control_tokens`, rows are parsed too."""
    return remembered(tokenizer, "_control_text", lambda: ControlText(tokenizer))


class ControlText:
    """Tokenizes rendered conversations so that control tokens spelled in their texts stay text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = (
            {} if getattr(tokenizer, "parse_control_tokens", False) else getattr(tokenizer, "added_tokens_decoder", {})
        )
        # The engine ends answers at it, so it is one there.
        end = end_of_answer(tokenizer).text if added else ""
        tokens = {
            id: token
            for id, token in added.items()
            if token.special or token.content == end or LOOKS_SPECIAL.fullmatch(token.content)
        }
        self._to_compare = COMPARED_COUNTS
        self._tokens: list[tuple[int, AddedToken]] = [(id, token) for id, token in tokens.items() if token.content]
        texts = [token.content for _, token in self._tokens]
        if not texts:
            return
        self._template = str(tokenizer.chat_template)
        self._texts = re.compile(any_of(texts))
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in texts}))
        self._firsts = re.compile(f"[{firsts}]")
        self._firsts_only = re.compile(f"()[{firsts}]")
        exempt = any_of(answer_texts(tokenizer, texts)) or NOTHING
        self._firsts_or_exempt = re.compile(f"({exempt})|[{firsts}]")
        self._texts_or_exempt = re.compile(f"({exempt})|(?:{self._texts.pattern})")
        self._texts_only = re.compile(f"()(?:{self._texts.pattern})")
        self._suffix = re.compile(any_of([text[start:] for text in texts for start in range(1, len(text))]) or NOTHING)
        self._longest = max(map(len, texts))
        self._tails = "\0".join(text[1:] for text in texts)
        self._placeholder_tokens = PlaceholderTokens(tokenizer, self._tokens, list(added.values()))

    def views(self, messages: list[Message], render: Callable[[list[Message], bool], str]) -> Iterator[View]:
        """Yields the ways to pass a conversation to the template, in the order to try them. `render` calls the
        template.

        A view's rendering raises ViewDiffers if the next view should be tried. The row is refused if none is left.
        """

        def plain(count: int, open_turn: bool) -> str:
            return render(messages[:count], open_turn)

        if not self._tokens or not any(self._may_spell(text) for message in messages for text in _texts_of(message)):
            yield View(messages, plain)
            return
        mark = self._mark_for(messages)

        def render_marked(marked: list[Message], count: int, open_turn: bool) -> str:
            try:
                return render(marked[:count], open_turn)
            except JobError as problem:
                raise ViewDiffers from problem

        def render_same(marked: list[Message], count: int, open_turn: bool) -> str:
            expected, text = plain(count, open_turn), render_marked(marked, count, open_turn)
            if text.replace(mark, "") != expected:
                raise ViewDiffers
            return text

        fully = [self._fully_marked(message, mark) for message in messages]
        yield View(fully, partial(render_same, fully), mark)
        narrowly = [self._narrowly_marked(message, mark) for message in messages]

        def render_narrow(count: int, open_turn: bool) -> str:
            text = render_same(narrowly, count, open_turn)
            if self._texts.findall(text) != self._texts.findall(render_marked(fully, count, open_turn)):
                raise ViewDiffers
            return text

        yield View(narrowly, render_narrow, mark)

    def spelled_in(self, texts: Iterable[str]) -> bool:
        """Whether one of these texts spells a control token."""
        return bool(self._tokens) and any(self._texts.search(text) for text in texts)

    def encode(
        self, renderings: list[Rendering], max_tokens: int | None = None
    ) -> list[tuple[list[int], list[Span], list[Span]]]:
        """Returns for each rendering its token ids, their offsets in the encoded text, and the spans in that text.

        Encodes each text once as a whole and adds nothing: the same tokens that the engine makes. Of a text with far
        more tokens than `max_tokens`, encodes only a prefix with more tokens than that.
        """
        results: dict[int, tuple[list[int], list[Span], list[Span]]] = {}
        texts = [self._prefix(rendering, max_tokens) for rendering in renderings]
        by_mark: dict[str | None, list[int]] = {}
        for index, rendering in enumerate(renderings):
            by_mark.setdefault(rendering.mark, []).append(index)
        for mark, group in by_mark.items():
            group_texts = [texts[index] for index in group]
            encoded = (
                self._encode_plain(group_texts) if mark is None else self._placeholder_tokens.encode(group_texts, mark)
            )
            for index, encoding in zip(group, encoded, strict=True):
                # With normalizers that delete text a prefix may have too few tokens.
                is_prefix = texts[index] is not renderings[index]
                too_few = max_tokens is not None and is_prefix and len(encoding[0]) <= max_tokens
                results[index] = self.encode([renderings[index]])[0] if too_few else encoding
        return [results[index] for index in range(len(renderings))]

    def count(self, renderings: list[Rendering], max_tokens: int) -> list[tuple[int, bool]]:
        """The number of tokens of each rendering and whether it is exact. It is a lower bound for texts with far more
        tokens than `max_tokens`.
        """
        texts = [self._prefix(rendering, max_tokens) for rendering in renderings]
        counts = [self._fast_count(text) for text in texts]
        compared, self._to_compare = self._to_compare, 0
        others = [index for index, count in enumerate(counts) if count is None or index < compared]
        for index, count in zip(others, self._full_counts([texts[index] for index in others]), strict=True):
            if counts[index] not in (None, count):
                # The tokenizer splits texts in a way that is not known.
                self._token_counts = None
                return self.count(renderings, max_tokens)
            counts[index] = count
        results: list[tuple[int, bool]] = []
        for text, whole, count in zip(texts, renderings, counts, strict=True):
            assert count is not None, "those without a fast count were counted in full"
            exact = text is whole or count <= max_tokens
            results.append((len(self.encode([whole])[0][0]) if exact and text is not whole else count, exact))
        return results

    def _full_counts(self, texts: list[Rendering]) -> list[int]:
        """The numbers of tokens, by making them all."""
        plain = [index for index, text in enumerate(texts) if text.mark is None]
        encoded = self._tokenizer.backend_tokenizer.encode_batch_fast(
            [texts[index].text for index in plain], add_special_tokens=False
        )
        counts = dict(zip(plain, map(len, encoded), strict=True))
        marked = [index for index in range(len(texts)) if index not in counts]
        for index, (ids, _, _) in zip(marked, self.encode([texts[index] for index in marked]), strict=True):
            counts[index] = len(ids)
        return [counts[index] for index in range(len(texts))]

    @cached_property
    def _token_counts(self) -> TokenCounts | None:
        backend = self._tokenizer.backend_tokenizer
        # As the tokenizer does before it encodes; a file may say otherwise.
        backend.no_truncation()
        backend.no_padding()
        return TokenCounts.of(backend, {id for id, _ in self._tokens} - {self._tokenizer.unk_token_id})

    @cached_property
    def _added(self) -> re.Pattern[str]:
        """Splits texts at the tokenizer's added tokens, the longest first."""
        added = self._tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        return re.compile(any_of([token.content for token in added if token.content]) or NOTHING)

    def _fast_count(self, rendering: Rendering) -> int | None:
        """The number of tokens; None if they must be made for it."""
        counts = self._token_counts
        if counts is None:
            return None
        try:
            if rendering.mark is not None:
                return self._placeholder_tokens.count(rendering, rendering.mark, counts)
            parts = self._added.split(rendering.text)
            return len(parts) - 1 + sum(map(counts.count, parts))
        except MakesControlToken:
            return None

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))

    def _prefix(self, rendering: Rendering, max_tokens: int | None) -> Rendering:
        # Nearly no text is longer, so the search of the vocabulary is rarely needed.
        if max_tokens is None or len(rendering.text) <= 8 * max_tokens:
            return rendering
        # Twice the bound: the last tokens of a cut text differ.
        max_characters = 2 * max_tokens * self._longest_token
        return (
            rendering._replace(text=rendering.text[:max_characters])
            if len(rendering.text) > max_characters
            else rendering
        )

    def _encode_plain(self, renderings: list[Rendering]) -> list[tuple[list[int], list[Span], list[Span]]]:
        encoded = self._tokenizer(
            [rendering.text for rendering in renderings], add_special_tokens=False, return_offsets_mapping=True
        )
        return list(
            zip(
                encoded["input_ids"],
                encoded["offset_mapping"],
                [rendering.spans for rendering in renderings],
                strict=True,
            )
        )

    def _may_spell(self, text: str) -> bool:
        return bool(self._firsts.search(text)) or self._may_complete(text) or self._may_normalize_to_one(text)

    def _may_complete(self, text: str) -> bool:
        """Whether the text completes a control text that the template starts just before it."""
        if not text:
            return False
        return (len(text) < self._longest and text in self._tails) or bool(self._suffix.match(text))

    @cached_property
    def _normalizer(self):
        """The normalizer, if the tokenizer looks for control texts after normalizing."""
        normalizer = self._tokenizer.backend_tokenizer.normalizer
        return normalizer if normalizer and any(token.normalized for _, token in self._tokens) else None

    def _may_normalize_to_one(self, text: str) -> bool:
        return bool(self._normalizer) and bool(self._firsts.search(self._normalizer.normalize_str(text)))

    def _mark_for(self, messages: list[Message]) -> str:
        for mark in MARKS:
            if mark not in self._template and not any(
                mark in text for message in messages for text in _texts_of(message)
            ):
                return mark
        raise JobError("dataset_invalid", "The row has all of the noncharacters U+FDD0 to U+FDEF. Remove them.")

    def _fully_marked(self, message: Message, mark: str) -> Message:
        """Puts a mark after every character that could start a control text, as the template may delete what follows,
        and before text that could complete one.
        """
        firsts = self._firsts_or_exempt if message["role"] == "assistant" else self._firsts_only

        def marked(text: str) -> str:
            result = firsts.sub(lambda match: match[0] if match[1] else match[0] + mark, text)
            return mark + result if self._may_complete(text) else result

        return _with_texts(message, marked)

    def _narrowly_marked(self, message: Message, mark: str) -> Message:
        """Marks only whole control texts, so that the template sees the rest unchanged."""
        texts = self._texts_or_exempt if message["role"] == "assistant" else self._texts_only
        return _with_texts(
            message,
            lambda text: texts.sub(lambda match: match[0] if match[1] else match[0][0] + mark + match[0][1:], text),
        )


def _texts_of(message: Message) -> list[str]:
    """The texts of a message that users write: its content and its thoughts."""
    thoughts = message.get("reasoning_content")
    return [*texts_in(message["content"]), *([thoughts] if thoughts else [])]


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """The message with each of these texts changed."""
    changed = {**message, "content": with_texts(message["content"], change)}
    if "reasoning_content" in message:
        changed["reasoning_content"] = change(message["reasoning_content"])
    return changed
