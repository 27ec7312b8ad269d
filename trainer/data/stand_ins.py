"""Tokenizes renderings whose own control texts are marked: those of the template become control tokens, the rest is
text.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer

from trainer.runtime.errors import JobError

Span = tuple[int, int]


class Rendering(NamedTuple):
    """A rendered conversation. `spans`: the characters `[begin, end)` that the loss counts. `mark`: what interrupts the row's own control
    texts in `text`; None where nothing has to be."""

    text: str
    spans: list[Span]
    mark: str | None = None


class StandIns:
    """Of a tokenizer, and the control tokens `(id, token)` that only a template may write."""

    def __init__(self, tokenizer, tokens: list[tuple[int, AddedToken]], added: list[AddedToken]) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens
        self._places = {token.content: place for place, (_, token) in enumerate(tokens)}
        # All added tokens are cut out of a text, the longest first: a control text inside of a longer one is none.
        self._all_added = re.compile(any_of([token.content for token in added if token.content]))
        self._unknown = tokenizer.unk_token_id
        self._clones: dict[str, Tokenizer] = {}

    def encode(self, renderings: list[Rendering], mark: str) -> list[tuple[list[int], list[Span], list[Span]]]:
        """Control texts of the template go through the tokenizer as stand-ins, which nothing in a row can spell."""
        given = [self._with_stand_ins(rendering, mark) for rendering in renderings]
        first = self._first_stand_in(mark)
        found = []
        encodings = self._clones[mark].encode_batch([text for text, _, _ in given], add_special_tokens=False)
        for encoding, (_, places, spans) in zip(encodings, given, strict=True):
            self._require_text(encoding.ids, first, places)
            ids = [self._tokens[id - first][0] if id >= first else id for id in encoding.ids]
            found.append((ids, encoding.offsets, spans))
        return found

    def _with_stand_ins(self, rendering: Rendering, mark: str) -> tuple[str, list[int], list[Span]]:
        """The text for the clone, the control tokens in it by their places, and the spans in that text."""
        parts, places, at = [], [], 0
        borders = sorted({border for span in rendering.spans for border in span}, reverse=True)
        moved: dict[int, int] = {}
        for start, end, place in self._pieces(rendering.text, mark):
            part = rendering.text[start:end].replace(mark, "") if place is None else f"{mark}{place}{mark}"
            while borders and borders[-1] < end:
                border = borders.pop()
                inside = border - start - rendering.text.count(mark, start, border)
                moved[border] = at + (inside if place is None else min(1, inside))
            if place is not None:
                places.append(place)
            parts.append(part)
            at += len(part)
        moved |= dict.fromkeys(borders, at)
        return "".join(parts), places, [(moved[begin], moved[end]) for begin, end in rendering.spans]

    def _pieces(self, text: str, mark: str) -> Iterator[tuple[int, int, int | None]]:
        """The text in pieces `[start, end)`; with the place of a control token, those that are one."""
        at = 0
        for found in self._all_added.finditer(text):
            place = self._places.get(found[0])
            # One of a single character cannot be interrupted: what is a row's own has a mark behind it.
            if place is None or (len(found[0]) == 1 and text.startswith(mark, found.end())):
                continue
            if at < found.start():
                yield at, found.start(), None
            yield found.start(), found.end(), place
            at = found.end()
        if at < len(text):
            yield at, len(text), None

    def _first_stand_in(self, mark: str) -> int:
        """Makes the tokenizer to which control texts are text, with a stand-in for each; returns the id of the first.
        """
        backend = self._tokenizer.backend_tokenizer
        if mark not in self._clones:
            stored = json.loads(backend.to_str())
            for token in stored["added_tokens"]:
                token["special"] |= token["content"] in self._places
            clone = Tokenizer.from_str(json.dumps(stored))
            clone.no_truncation()
            clone.no_padding()
            clone.encode_special_tokens = True
            clone.add_tokens([_stand_in(token, f"{mark}{place}{mark}") for place, (_, token) in enumerate(self._tokens)])
            self._clones[mark] = clone
        return self._clones[mark].token_to_id(f"{mark}0{mark}")

    def _require_text(self, ids: list[int], first: int, places: list[int]) -> None:
        """Raises JobError("dataset_invalid") where the tokenizer has made control tokens of text, or lost one of the template's."""
        if [id - first for id in ids if id >= first] != places or not self._text_controls.isdisjoint(ids):
            raise JobError(
                "dataset_invalid", "The row spells a control token of the model that its tokenizer cannot write as text. Remove it."
            )

    @cached_property
    def _text_controls(self) -> set[int]:
        """The control tokens that text must not become. What the tokenizer does not know may."""
        return {id for id, _ in self._tokens} - {self._unknown}


def _stand_in(token: AddedToken, text: str) -> AddedToken:
    return AddedToken(
        text, single_word=token.single_word, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized, special=False
    )


def any_of(texts: list[str]) -> str:
    """A pattern that finds the longest of the texts at a place, however many there are: each character is looked at
    once.
    """
    tree: dict = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}

    def pattern(node: dict) -> str:
        rest = [re.escape(character) + pattern(child) for character, child in node.items() if character]
        if not rest:
            return ""
        whole = rest[0] if len(rest) == 1 and "" not in node else f"(?:{'|'.join(rest)})"
        return f"{whole}?" if "" in node else whole

    return pattern(tree)
