"""Tokenizes marked renderings: control texts of the template become control tokens, everything else is text."""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken

from trainer.data.pictures import Picture
from trainer.data.token_counts import TokenCounts
from trainer.data.tokenizer import Tokenizer
from trainer.runtime.errors import JobError

Span = tuple[int, int]
# An expression that matches nowhere.
NOTHING = r"(?!)"


class Rendering(NamedTuple):
    """A rendered conversation. `spans`: the characters `[begin, end)` that the loss counts. `mark`: the character that
    breaks up the row's own control texts; None if there are none. `pictures`: those that it shows, in order.
    """

    text: str
    spans: list[Span]
    mark: str | None = None
    pictures: tuple[Picture, ...] = ()


class PlaceholderTokens:
    """Placeholder tokens of a tokenizer for its control tokens `(id, token)`, which only a template may write."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[tuple[int, AddedToken]], added: list[AddedToken]) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens
        self._indices = {token.content: index for index, (_, token) in enumerate(tokens)}
        # Splits at all added tokens, longest first: a control text inside a longer one does not count.
        self._all_added = re.compile(any_of([token.content for token in added if token.content]))
        special = {token.content for token in added if token.special or token.content in self._indices}
        self._special = re.compile(any_of([content for content in special if content]) or NOTHING)
        ordinary = [token.content for token in added if token.content not in special]
        self._ordinary = any_of([content for content in ordinary if content]) or NOTHING
        self._unknown = tokenizer.unk_token_id
        self._clones: dict[str, tokenizers.Tokenizer] = {}

    def encode(self, renderings: list[Rendering], mark: str) -> list[tuple[list[int], list[Span], list[Span]]]:
        """Encodes the template's control texts as placeholders, which no row can spell, and everything else as text."""
        replaced = [self._with_placeholders(rendering, mark) for rendering in renderings]
        first = self._first_placeholder(mark)
        results: list[tuple[list[int], list[Span], list[Span]]] = []
        encodings = self._clones[mark].encode_batch([text for text, _, _ in replaced], add_special_tokens=False)
        for encoding, (_, indices, spans) in zip(encodings, replaced, strict=True):
            self._require_text(encoding.ids, first, indices)
            ids = [self._tokens[id - first][0] if id >= first else id for id in encoding.ids]
            results.append((ids, encoding.offsets, spans))
        return results

    def count(self, rendering: Rendering, mark: str, counts: TokenCounts) -> int | None:
        """The number of tokens that `encode` makes; None if the row spells a control token, so that they must be made.
        Raises MakesControlToken.
        """
        text, _, _ = self._with_placeholders(rendering, mark)
        if self._special.search(text):
            return None
        parts = re.split(f"{mark}[0-9]+{mark}|{self._ordinary}", text)
        return len(parts) - 1 + sum(map(counts.count, parts))

    def _with_placeholders(self, rendering: Rendering, mark: str) -> tuple[str, list[int], list[Span]]:
        """The text with placeholders, the indices of their control tokens, and the spans in that text."""
        parts: list[str] = []
        indices: list[int] = []
        at = 0
        borders = sorted({border for span in rendering.spans for border in span}, reverse=True)
        moved: dict[int, int] = {}
        for start, end, index in self._pieces(rendering.text, mark):
            part = rendering.text[start:end].replace(mark, "") if index is None else f"{mark}{index}{mark}"
            while borders and borders[-1] < end:
                border = borders.pop()
                inside = border - start - rendering.text.count(mark, start, border)
                moved[border] = at + (inside if index is None else min(1, inside))
            if index is not None:
                indices.append(index)
            parts.append(part)
            at += len(part)
        moved |= dict.fromkeys(borders, at)
        return "".join(parts), indices, [(moved[begin], moved[end]) for begin, end in rendering.spans]

    def _pieces(self, text: str, mark: str) -> Iterator[tuple[int, int, int | None]]:
        """Splits the text into pieces `[start, end)`; control tokens come with their index."""
        at = 0
        for match in self._all_added.finditer(text):
            index = self._indices.get(match[0])
            # A mark cannot break up a single character: the row's own has the mark after it.
            if index is None or (len(match[0]) == 1 and text.startswith(mark, match.end())):
                continue
            if at < match.start():
                yield at, match.start(), None
            yield match.start(), match.end(), index
            at = match.end()
        if at < len(text):
            yield at, len(text), None

    def _first_placeholder(self, mark: str) -> int:
        """Builds a tokenizer that reads control texts as text and has a placeholder for each. Returns the first
        placeholder's id.
        """
        backend = self._tokenizer.backend_tokenizer
        if mark not in self._clones:
            stored = json.loads(backend.to_str())
            for token in stored["added_tokens"]:
                token["special"] |= token["content"] in self._indices
            clone = tokenizers.Tokenizer.from_str(json.dumps(stored))
            clone.no_truncation()
            clone.no_padding()
            clone.encode_special_tokens = True
            clone.add_tokens(  # pyright: ignore[reportUnknownMemberType]
                [_placeholder(token, f"{mark}{index}{mark}") for index, (_, token) in enumerate(self._tokens)]
            )
            self._clones[mark] = clone
        first = self._clones[mark].token_to_id(f"{mark}0{mark}")
        assert first is not None, "the placeholders were added above"
        return first

    def _require_text(self, ids: list[int], first: int, indices: list[int]) -> None:
        """Raises JobError("dataset_invalid") if the tokenizer made control tokens of text, or lost one of the
        template's.
        """
        if [id - first for id in ids if id >= first] != indices or not self._text_controls.isdisjoint(ids):
            raise JobError(
                "dataset_invalid",
                "The row spells a control token of the model that its tokenizer cannot write as text. Remove it.",
            )

    @cached_property
    def _text_controls(self) -> set[int]:
        """The control tokens that text must not become, except the unknown token."""
        return {id for id, _ in self._tokens} - {self._unknown}


def _placeholder(token: AddedToken, text: str) -> AddedToken:
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )


def any_of(texts: list[str]) -> str:
    """A regular expression for the longest of the texts. A trie, so it reads each character once however many texts
    there are.
    """
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        rest = [re.escape(character) + pattern(child) for character, child in node.items() if character]
        if not rest:
            return ""
        whole = rest[0] if len(rest) == 1 and "" not in node else f"(?:{'|'.join(rest)})"
        return f"{whole}?" if "" in node else whole

    return pattern(tree)
