"""Tokens are counted exactly as the tokenizer makes them, and a file counts the same in blocks as in one piece."""

import json
import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.normalizers import NFC, Lowercase, Sequence
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from trainer.cli import count_lines
from trainer.cli.count import Totals, count
from trainer.cli.count_lines import blocks_of
from trainer.data import token_counts
from trainer.data.control_text import COMPARED_COUNTS, control_text
from trainer.data.loss_mask import rendering
from trainer.data.placeholder_tokens import Rendering
from trainer.data.token_counts import GPT2, MakesControlToken, TokenCounts

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NEMO = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WAYS = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm2": Steps([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    **{
        name: Steps([Split(Regex(pattern), *how), ByteLevel(add_prefix_space=False, use_regex=False)])
        for name, pattern, *how in (
            ("gpt-2 split", GPT2, "isolated"),
            ("llama-3", LLAMA3, "isolated"),
            ("qwen-2", LLAMA3.replace("{1,3}", ""), "isolated"),
            ("nemo", NEMO, "removed", True),
        )
    },
    "digits before a split": Steps(
        [
            Digits(individual_digits=True),
            Split(Regex(LLAMA3), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
# Characters that decide where words begin; those of each line appear together.
ALPHABETS = [
    " \t\n\r'sStTreEvVmMlLdD019!/-_",
    "".join(map(chr, range(128))),
    " ab1'\u00e9e\u0301\u00a0\u2003\u200b\u0085\u180e\ufeff\u017f\u00bd\u0664",
    " a\n\u4e2d\u6587\u0440\u0443\u0441\U0001f642\u200d\U0001f3fd\u0e01\u0e33\u1100\u1161\u0000\x1c\x1f",
]


def nasty_texts(count: int) -> list[str]:
    random_ = random.Random(7)
    return [
        "".join(random_.choices(alphabet, k=random_.randrange(1, 60))) for alphabet in ALPHABETS for _ in range(count)
    ]


@pytest.fixture(scope="module")
def backend(small_tokenizer):
    return Tokenizer.from_file(str(small_tokenizer / "tokenizer.json"))


def changed(backend: Tokenizer, pre_tokenizer, normalizer=None) -> Tokenizer:
    other = Tokenizer(backend.model)
    other.pre_tokenizer = pre_tokenizer
    if normalizer:
        other.normalizer = normalizer
    return other


@pytest.mark.parametrize("name", WAYS)
def test_counts_equal_the_tokenizers(name, backend):
    for normalizer in (None, NFC()):
        tokenizer = changed(backend, WAYS[name], normalizer)
        counts = TokenCounts.of(tokenizer, set())
        texts = nasty_texts(150)
        expected = [len(each) for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        # From the cache too.
        for _ in range(2):
            assert [counts.count(text) for text in texts] == expected


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer"),
    [
        (ByteLevel(add_prefix_space=True), None),
        (ByteLevel(add_prefix_space=False, use_regex=False), None),
        (Metaspace(), None),
        (WAYS["gpt-2"], Sequence([NFC(), Lowercase()])),
        *(
            (Steps([Split(Regex(pattern), *how), ByteLevel(add_prefix_space=False, use_regex=False)]), None)
            for pattern, *how in (
                (r"\S+ \S+|" + GPT2, "isolated"),
                (r"(?<=x)\p{L}+|" + GPT2, "isolated"),
                (GPT2.removesuffix(r"|\s+"), "isolated"),
                (GPT2, "isolated", True),
                (GPT2, "merged_with_next"),
            )
        ),
    ],
)
def test_tokenizers_that_split_in_other_ways_are_asked_for_all_tokens(pre_tokenizer, normalizer, backend):
    assert TokenCounts.of(changed(backend, pre_tokenizer, normalizer), set()) is None


@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip", "single_word"])
def test_added_tokens_that_take_what_is_beside_them_are_left_to_the_tokenizer(flag, backend):
    tokenizer = changed(backend, WAYS["gpt-2"])
    tokenizer.add_tokens([AddedToken("<x>", **{"normalized": False, flag: True})])
    assert TokenCounts.of(tokenizer, set()) is None


def test_text_that_becomes_a_control_token_is_not_counted(backend):
    tokenizer = changed(backend, WAYS["gpt-2"])
    for word in (" the", " \u00e9t\u00e9"):
        counts = TokenCounts.of(tokenizer, {tokenizer.encode(word).ids[-1]})
        for _ in range(2):
            with pytest.raises(MakesControlToken):
                counts.count(f"now{word} end")


def test_the_cache_is_bounded(backend, monkeypatch):
    monkeypatch.setattr(token_counts, "MAX_WORDS", 10)
    counts = TokenCounts.of(changed(backend, WAYS["gpt-2"]), set())
    words = [f" {'x' * length}" for length in range(1, 100)]
    sizes = [(counts.count(word), len(counts._count.__self__)) for word in words]
    assert max(size for _, size in sizes) <= 10
    assert [counts.count(word) for word in words] == [count for count, _ in sizes]


def test_a_wrong_count_is_found_by_the_first_texts(tokenizer, monkeypatch):
    monkeypatch.setattr(TokenCounts, "count", lambda *_: 7)
    monkeypatch.setattr(TokenCounts, "_is_right", lambda *_: True)
    controls = control_text(AutoCopy(tokenizer))
    assert controls.count([Rendering("One two three", [])], 100) == [(3, True)]


class AutoCopy:
    """The same tokenizer without what is cached on it."""

    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)


ROWS = [
    {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} <|im_en {index}"}]}
    for index, text in enumerate(
        [
            *nasty_texts(10),
            "<|im_end|>",
            "\u00e9<|im_end|>\u00e9",
            "\u00e9<|endoftext|>\u00e9",
            "a <b> c",
            "<repo_name>",
            "word " * 90,
        ]
    )
    if text.strip()
]


def test_rows_are_counted_with_every_token_of_the_template_and_none_of_the_text(tokenizer):
    controls = control_text(tokenizer)
    renderings = [rendering(row["messages"], tokenizer) for row in ROWS]
    assert {each.mark is None for each in renderings} == {False}
    renderings += [rendering([{"role": "user", "content": text}], tokenizer) for text in nasty_texts(10)]
    # Those that are counted in both ways.
    controls.count([Rendering("text", [])] * COMPARED_COUNTS, 10_000)
    counted = controls.count(renderings, 10_000)
    assert controls._token_counts
    assert counted == [(len(ids), True) for ids, _, _ in controls.encode(renderings)]


def test_blocks_of_a_file_count_like_the_whole(tokenizer, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    whole = count(tokenizer, file, 60).summary(60)
    assert whole["cut"] and whole["rows"] == len(ROWS)
    monkeypatch.setattr(count_lines, "BLOCK_BYTES", 700)
    blocks = list(blocks_of(file))
    assert len(blocks) > 5
    totals = Totals()
    for block in blocks:
        found = count(tokenizer, file, 60, block=block)
        totals.add_totals(found.bars, found.numbers, found.listed)
    assert totals.summary(60) == whole
