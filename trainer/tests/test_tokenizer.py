"""Trainer and engine have the same tokens: vocabulary, merges, single digits. (Tests through the engine are in
tests/.)
"""

import json

import pytest

from trainer.runtime.gguf_reader import GgufReader
from trainer.tests.make_tiny import TOKENIZER

TRICKY = [
    "12 2026 3.14",
    "x = {'a': [1, 2]}\n\treturn  x",
    "naïve Ärger 東京 🙂👍🏽",
    "  two  spaces \r\n\n\nend ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


@pytest.fixture(scope="module")
def fields():
    return GgufReader(TOKENIZER.parent / "model.gguf").fields


def test_vocabulary_and_merges_equal_the_served_files(tokenizer, fields):
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert names == fields["tokenizer.ggml.tokens"].contents()
    merges = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["merges"]
    assert [" ".join(pair) for pair in merges] == fields["tokenizer.ggml.merges"].contents()


def test_the_template_equals_the_served_files(tokenizer, fields):
    assert tokenizer.chat_template == fields["tokenizer.chat_template"].contents()


@pytest.mark.parametrize("text", TRICKY)
def test_text_round_trips_and_digits_are_single_tokens(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert all(
        len(token) == 1 for token in tokenizer.convert_ids_to_tokens(ids) if any(letter.isdigit() for letter in token)
    )
