"""The trainer's tokens are the engine's: same vocabulary, same merges, digits apart. (Through the engine itself:
tests/.)
"""

import json

import pytest

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
    import gguf

    return gguf.GGUFReader(TOKENIZER.parent / "model.gguf").fields


def test_vocabulary_and_merges_are_those_of_the_file_that_is_served(tokenizer, fields):
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert names == fields["tokenizer.ggml.tokens"].contents()
    merges = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["merges"]
    assert [" ".join(pair) for pair in merges] == fields["tokenizer.ggml.merges"].contents()


def test_the_template_is_that_of_the_file_that_is_served(tokenizer, fields):
    assert tokenizer.chat_template == fields["tokenizer.chat_template"].contents()


@pytest.mark.parametrize("text", TRICKY)
def test_text_survives_and_digits_stand_alone(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert all(
        len(token) == 1 for token in tokenizer.convert_ids_to_tokens(ids) if any(letter.isdigit() for letter in token)
    )
