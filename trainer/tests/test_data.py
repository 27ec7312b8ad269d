"""Which tokens are learned, and which datasets are refused."""

from pathlib import Path

import pytest

from trainer.data.dataset import prepare, read_conversations
from trainer.data.loss_mask import training_renderings
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import Recorder

TALK = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "First answer."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Second, 2 €."},
]


def learned(sequence, tokenizer) -> list[str]:
    """The text of each run of learned tokens."""
    runs, previous = [], False
    for token, trained in zip(sequence.ids, sequence.trained, strict=True):
        if trained:
            runs = [*runs[:-1], [*runs[-1], token]] if previous else [*runs, [token]]
        previous = trained
    return [tokenizer.decode(run) for run in runs]


def only_sequence(messages, tokenizer, max_length=2048):
    (row,) = prepare([messages], tokenizer, max_length, Recorder()).rows
    (sequence,) = row.sequences
    return sequence


def test_every_answer_and_its_end_token_are_learned_and_nothing_else(tokenizer):
    sequence = only_sequence(TALK, tokenizer)
    assert learned(sequence, tokenizer) == ["First answer.<|im_end|>", "Second, 2 €.<|im_end|>"]
    whole = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert sequence.ids.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_an_empty_answer_teaches_the_end_token(tokenizer):
    sequence = only_sequence([TALK[0], {"role": "assistant", "content": ""}], tokenizer)
    assert learned(sequence, tokenizer) == ["<|im_end|>"]


def test_a_template_that_changes_earlier_turns_gives_one_text_for_each_turn(tokenizer):
    class Rewriting:
        """Like some reasoning models: the last turn starts with an empty thought, which earlier turns lose."""

        all_special_tokens = ("<|im_end|>",)

        def apply_chat_template(self, messages, tokenize, add_generation_prompt):
            text = ""
            for i, message in enumerate(messages):
                thought = "<think></think>" if message["role"] == "assistant" and i == len(messages) - 1 else ""
                text += f"<{message['role']}>{thought}{message['content']}<|im_end|>\n"
            return text + ("<assistant>" if add_generation_prompt else "")

    first, second = training_renderings(TALK, Rewriting())
    assert [first[0][a:b] for a, b in first[1]] == ["<think></think>First answer.<|im_end|>"]
    assert [second[0][a:b] for a, b in second[1]] == ["<think></think>Second, 2 €.<|im_end|>"]
    assert second[0].count("<think>") == 1


def test_long_rows_are_cut_and_rows_without_an_answer_left_are_dropped(tokenizer):
    protocol = Recorder()
    long_answer = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "word " * 200}]
    long_question = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "Hi"}]
    data = prepare([TALK, long_answer, long_question], tokenizer, 100, protocol)
    assert (len(data.rows), data.truncated_rows, data.dropped_rows) == (2, 2, 1)
    assert data.rows[1].tokens == 100
    assert protocol.of("warning") == [{"dropped_rows": 1}]


GOOD = '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "{oops\n", "Line 2 is not JSON."),
        (GOOD + "[]\n", "Line 2 has no messages."),
        (
            GOOD * 2 + '{"messages":[{"role":"robot","content":"a"}]}\n',
            "Line 3 has a message whose role is none of system, user and assistant.",
        ),
        (GOOD + '{"messages":[{"role":"user","content":7}]}\n', "Line 2 has a message whose content is not text."),
        (
            GOOD + '{"messages":[{"role":"user","content":"a"}]}\n',
            "Line 2 does not end with an assistant's message, so its end teaches nothing.",
        ),
        ("\n", "The dataset has no rows."),
    ],
)
def test_a_bad_dataset_is_refused_with_the_row(job, text, message):
    spec = read_spec(job(text=text))
    with pytest.raises(JobError, match=message.replace(".", r"\.")) as raised:
        read_conversations(Path(spec.dataset.path), spec.dataset.sha256)
    assert raised.value.code == "dataset_invalid"
