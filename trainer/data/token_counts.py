"""Counts the tokens of texts without making them: words repeat, so the tokenizer's model is asked once for each word.

The counts are the tokenizer's own (Hugging Face tokenizers, byte-level BPE). Texts are split as its pre-tokenizer does;
the split is known for the alternatives of patterns below, and only for ASCII, where the classes of Python's expressions
and of the library's are the same. Of other text the words between spaces are given to the tokenizer itself. Tokenizers
of other kinds are not counted here.
"""

import json
import re
from itertools import product
from typing import Any, Self

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

# The pattern of ByteLevel (tokenizers/src/pre_tokenizers/byte_level.rs).
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# Alternatives of the patterns of GPT-2, GPT-4, Llama 3, Qwen and Mistral Nemo; any of them make a pattern, with `\s+`
# last. None matches a space after another character but whitespace, and none looks behind. So
# - a text may be split before a single space between other characters: no match goes over it or depends on what is
#   beyond it;
# - a match alone is matched whole: only `\s+(?!\S)` looks ahead, and `\s+` matches what it leaves.
ALTERNATIVES = {
    *GPT2.split("|"),
    _SUFFIX,
    r"\p{N}",
    r"\p{N}{1,3}",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    *(
        rf"[^\r\n\p{{L}}\p{{N}}]?{word}{suffix}"
        for word in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
        for suffix in ("", f"{_SUFFIX}?")
    ),
}
_ASCII = {"L": "A-Za-z", "N": "0-9", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": ""}
# Whitespace of any Unicode version, and characters that some count as it.
_BLANK = r"\x00-\x20\x7f-\xa0\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff"
_CUT = re.compile(f" (?=[^{_BLANK}])(?<=[^{_BLANK}] )")
_BYTES = {
    code: ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(code))[0][0] for code in range(128)
}
# Bounds of the cache: some 40 MB.
MAX_WORDS, MAX_WORD_LENGTH = 1 << 18, 64


class MakesControlToken(Exception):
    """The tokenizer makes a control token of plain text."""


class TokenCounts:
    """Counts of one tokenizer, for texts without its added tokens."""

    @classmethod
    def of(cls, backend: Tokenizer, controls: set[int]) -> Self | None:
        """`controls`: tokens that text must not become. None if the tokenizer's way to split texts is not known."""
        pattern = _ascii_pattern(backend)
        counts = cls(backend, controls, re.compile(pattern, re.ASCII)) if pattern else None
        return counts if counts and counts._is_right() else None

    def __init__(self, backend: Tokenizer, controls: set[int], words: re.Pattern[str]) -> None:
        self._backend = backend
        self._words = words.findall
        self._count = _Words(backend, controls).__getitem__

    def count(self, text: str) -> int:
        """Raises MakesControlToken."""
        if text.isascii():
            return sum(map(self._count, self._words(text)))
        first, *others = _CUT.split(text)
        return sum(
            sum(map(self._count, self._words(part))) if part.isascii() else self._count(part)
            for part in (first, *(f" {other}" for other in others))
        )

    def _is_right(self) -> bool:
        """Whether the tokenizer counts the same for every ASCII character among letters and spaces, and for every
        triple of characters of other classes.
        """
        every = "".join(f"{letter}a {letter}{letter} " for letter in map(chr, range(128)))
        text = every + "".join(map("".join, product(" \t\n\r'aSt0!/", repeat=3)))
        try:
            return self.count(text) == len(self._backend.encode(text, add_special_tokens=False))
        except MakesControlToken:
            return False


class _Words(dict[str, int]):
    """The number of tokens of each word."""

    def __init__(self, backend: Tokenizer, controls: set[int]) -> None:
        super().__init__()
        self._backend, self._model, self._controls = backend, backend.model, controls

    def __missing__(self, word: str) -> int:
        if word.isascii():
            ids = [token.id for token in self._model.tokenize(word.translate(_BYTES))]
        else:
            ids = self._backend.encode_batch_fast([word], add_special_tokens=False)[0].ids
        if not self._controls.isdisjoint(ids):
            raise MakesControlToken
        if len(word) <= MAX_WORD_LENGTH:
            if len(self) >= MAX_WORDS:
                # The usual words are back at once.
                self.clear()
            self[word] = len(ids)
        return len(ids)


def _ascii_pattern(backend: Tokenizer) -> str | None:
    """The expression whose matches in ASCII text are the words that the tokenizer splits it into; None if it is not
    known.
    """
    model, normalizer = backend.model, _state(backend.normalizer)
    added = backend.get_added_tokens_decoder().values()
    if (
        not isinstance(model, models.BPE)
        or model.dropout
        # NFC changes no ASCII, and nothing over a space.
        or normalizer not in (None, {"type": "NFC"})
        or any(token.normalized or token.lstrip or token.rstrip or token.single_word for token in added)
    ):
        return None
    state = _state(backend.pre_tokenizer) or {}
    steps = state.get("pretokenizers", []) if state.get("type") == "Sequence" else [state]
    digits = bool(steps) and steps[0] == {"type": "Digits", "individual_digits": True}
    *splits, last = steps[digits:] or [{}]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"] or len(splits) != (not last["use_regex"]):
        return None
    pattern = _pattern_of(splits[0]) if splits else GPT2
    alternatives = re.split(r"\|(?![^(]*\))", pattern)
    if not ALTERNATIVES.issuperset(alternatives) or alternatives[-1] != r"\s+":
        return None
    if digits:
        # Each digit was a word before the others are found.
        others = [
            alternative for alternative in alternatives if alternative not in (r" ?\p{N}+", r"\p{N}", r"\p{N}{1,3}")
        ]
        alternatives = ["[0-9]", *(alternative.replace(r"(?!\S)", "(?![^\\s0-9])") for alternative in others)]
    inside = [re.sub(r"\[[^]]*\]", lambda match: _to_ascii(match[0]), alternative) for alternative in alternatives]
    return "|".join(
        re.sub(r"\\p{\w+}", lambda match: f"[{_to_ascii(match[0])}]", alternative) for alternative in inside
    )


def _to_ascii(classes: str) -> str:
    return re.sub(r"\\p{(\w+)}", lambda match: _ASCII[match[1]], classes)


def _pattern_of(split: dict[str, Any]) -> str:
    """The pattern of a Split whose matches are the words; empty for others."""
    pattern = split.get("pattern", {}).get("Regex", "") if split.get("type") == "Split" else ""
    keeps = (split.get("behavior"), split.get("invert")) in (("Isolated", False), ("Removed", True))
    return pattern if keeps else ""


def _state(part: Any) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer as tokenizer.json has it."""
    return None if part is None else json.loads(part.__getstate__())
