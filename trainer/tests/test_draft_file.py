"""The file that the engine drafts answers from: whose tokens are in it, how many, and in which order."""

import random

import numpy as np
import pytest

from trainer.data.dataset import Row, Sequence, prepare
from trainer.data.rows import Conversation
from trainer.run.draft_file import SEPARATOR, answers, distinct, joined, sample, suffix_array, write_drafts
from trainer.tests.conftest import Recorder, pair_row, rated_row
from trainer.tests.test_data import TALK
from trainer.tests.test_preferences import parsed


def read(path) -> tuple[int, list[int], list[int]]:
    """The size of the vocabulary, the tokens and the suffixes."""
    content = path.read_bytes()
    assert content[:8] == b"TNDRAFT1"
    numbers = np.frombuffer(content[8:], dtype="<u4").tolist()
    count, vocab_size = numbers[:2]
    assert len(numbers) == 2 + 2 * count
    return vocab_size, numbers[2 : 2 + count], numbers[2 + count :]


def texts(tokens: list[int], tokenizer) -> list[str]:
    """The answers that a file's tokens spell."""
    assert tokens[0] == SEPARATOR
    starts = [at for at, token in enumerate(tokens) if token == SEPARATOR]
    return [
        tokenizer.decode(tokens[start + 1 : end]) for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)
    ]


def sequence(*learned: int) -> Sequence:
    """A token of a prompt, and an answer."""
    return Sequence(np.array([1, *learned], dtype=np.int32), np.array([False] + [True] * len(learned)))


def test_the_file_has_each_answer_once_with_the_token_that_ends_it(tokenizer, tmp_path):
    rows = prepare([TALK, TALK[:2], TALK[2:]], tokenizer, 2048, Recorder()).rows
    file = write_drafts(rows, "sft", len(tokenizer), tmp_path / "drafts.bin")
    vocab_size, tokens, suffixes = read(file)
    assert vocab_size == len(tokenizer)
    assert texts(tokens, tokenizer) == ["First answer.<|im_end|>", "Second, 2 €.<|im_end|>"]
    assert sorted(suffixes) == list(range(len(tokens)))
    assert [tokens[at:] for at in suffixes] == sorted(tokens[at:] for at in suffixes)


@pytest.mark.parametrize("symbols", [1, 2, 50])
def test_suffixes_have_the_order_of_a_plain_sort(symbols):
    chosen = random.Random(symbols)
    for length in [*range(1, 20), 300]:
        tokens = [chosen.choice([SEPARATOR, *range(symbols)]) for _ in range(length)]
        assert suffix_array(np.array(tokens, dtype=np.uint32)).tolist() == sorted(
            range(length), key=lambda at, tokens=tokens: tokens[at:]
        )


def test_only_answers_that_are_preferred_are_drafted_from(tokenizer, tmp_path):
    question = [{"role": "user", "content": "One?"}]
    pair = parsed(pair_row(question, "Good.", "Bad."))
    rows = prepare([pair], tokenizer, 2048, Recorder()).rows
    _, tokens, _ = read(write_drafts(rows, "dpo", 10**6, tmp_path / "drafts.bin"))
    assert texts(tokens, tokenizer) == ["Good.<|im_end|>"]

    rated = [parsed(rated_row(question, answer, label), "kto") for answer, label in (("Good.", True), ("Bad.", False))]
    assert all(isinstance(row, Conversation) for row in rated)
    rows = prepare(rated, tokenizer, 2048, Recorder()).rows
    _, tokens, _ = read(write_drafts(rows, "kto", 10**6, tmp_path / "drafts.bin"))
    assert texts(tokens, tokenizer) == ["Good.<|im_end|>"]


def test_a_training_without_a_preferred_answer_has_no_file(tmp_path):
    rows = [Row(1, [sequence(5, 6)], label=False)]
    assert write_drafts(rows, "kto", 10, tmp_path / "drafts.bin") is None
    assert list(tmp_path.iterdir()) == []


def test_the_vectors_of_a_picture_are_in_no_answer():
    seen = Sequence(
        np.arange(6, dtype=np.int32), np.array([0, 1, 1, 1, 0, 1], dtype=bool), np.array([-1, -1, 7, -1, -1, -1])
    )
    assert [answer.tolist() for answer in answers([Row(1, [seen])], "sft")] == [[1], [3], [5]]


def test_a_large_dataset_is_sampled_evenly_within_the_bound(tmp_path):
    # Two lengths, the long ones later: an even sample has both in their share.
    found = [np.arange(start, start + (3 if start < 500 else 9), dtype=np.int32) for start in range(1000)]
    assert sample(found, 10**6) == found
    kept = sample(found, 1000)
    tokens = sum(len(answer) + 1 for answer in kept)
    assert 980 < tokens <= 1000
    halves = [sum(1 for answer in kept if low <= answer[0] < low + 500) for low in (0, 500)]
    assert all(abs(half - 500 * 1000 / 7000) <= 2 for half in halves), halves
    # An answer that alone is too long leaves room for the others.
    assert [len(answer) for answer in sample([np.zeros(5000), *found], 1000)].count(5000) == 0

    rows = [Row(number, [sequence(*range(number, number + 9))]) for number in range(1, 400)]
    files = [write_drafts(rows, "sft", 10**6, tmp_path / name, most=101) for name in ("a", "b")]
    assert len(read(files[0])[1]) == 100
    assert files[0].read_bytes() == files[1].read_bytes()


def test_equal_answers_are_told_by_their_tokens():
    found = [np.array(answer, dtype=np.int32) for answer in ([1, 2], [1], [1, 2], [2, 1])]
    assert [answer.tolist() for answer in distinct(iter(found))] == [[1, 2], [1], [2, 1]]
    assert joined([]).tolist() == []
