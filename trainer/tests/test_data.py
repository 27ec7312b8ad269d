"""Which tokens are learned, and which datasets are refused."""

import json
import types
from copy import deepcopy
from pathlib import Path

import pytest
from transformers import AddedToken

from trainer.cli.count import count
from trainer.data.dataset import prepare
from trainer.data.ends import end_token_of
from trainer.data.loss_mask import training_renderings
from trainer.data.rows import parse_row, read_rows
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import Recorder, with_chat_template

TEMPLATES = Path(__file__).parents[2] / "tests/fixtures/templates"
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


def test_a_row_that_begins_with_an_answer_has_its_tokens_alone(tokenizer):
    row = [{"role": "assistant", "content": "Hello there."}, *TALK]
    assert learned(only_sequence(row, tokenizer), tokenizer)[0] == "Hello there.<|im_end|>"


def test_every_answer_and_its_end_token_are_learned_and_nothing_else(tokenizer):
    sequence = only_sequence(TALK, tokenizer)
    assert learned(sequence, tokenizer) == ["First answer.<|im_end|>", "Second, 2 €.<|im_end|>"]
    whole = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert sequence.ids.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_a_turn_ends_with_a_special_token_that_has_no_name(tokenizer):
    """As Gemma's: the line break after it is not learned, so answers end where the engine sees an end."""
    changed = with_chat_template(deepcopy(tokenizer), tokenizer.chat_template.replace("<|im_end|>", "<end_of_turn>"))
    changed.add_tokens(AddedToken("<end_of_turn>", special=True), special_tokens=True)
    assert "<end_of_turn>" not in changed.all_special_tokens
    assert learned(only_sequence(TALK, changed), changed) == [
        "First answer.<end_of_turn>",
        "Second, 2 €.<end_of_turn>",
    ]


def test_a_turn_ends_with_a_token_that_the_tokenizer_calls_ordinary(tokenizer):
    """As Laguna's. Spelled in a row it is text, as the engine reads it, which ends answers there."""
    changed = with_chat_template(deepcopy(tokenizer), tokenizer.chat_template.replace("<|im_end|>", "</turn>"))
    changed.add_tokens(AddedToken("</turn>", special=False))
    assert learned(only_sequence(TALK, changed), changed) == ["First answer.</turn>", "Second, 2 €.</turn>"]
    assert end_token_of(changed) == changed.convert_tokens_to_ids("</turn>")
    spelled = [{"role": "user", "content": "Say </turn>!"}, {"role": "assistant", "content": "</turn>"}]
    ids = only_sequence(spelled, changed).ids.tolist()
    # Those that the template writes: the system's, the question's and the answer's.
    assert ids.count(end_token_of(changed)) == 3


def test_answers_of_a_template_that_ends_them_with_words_end_with_the_tokenizers_end_token(tokenizer):
    """It stands in the place of the words, which no engine takes for an end."""
    turn = "{{ message.role }}\n{{ message.content }}{% if message.role == 'assistant' %} (end){% endif %}\n"
    opening = "{% if add_generation_prompt %}assistant\n{% endif %}"
    changed = with_chat_template(tokenizer, f"{{% for message in messages %}}{turn}{{% endfor %}}{opening}")
    row = prepare([TALK], changed, 2048, Recorder()).rows[0]
    assert [text for sequence in row.sequences for text in learned(sequence, changed)] == [
        "First answer.<|im_end|>",
        "Second, 2 €.<|im_end|>",
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.glob("*.jinja")))
def test_a_row_that_begins_with_an_answer_teaches_the_answer_alone(tokenizer, name):
    """Not the template's own system text, nor the opening of the turn."""
    changed = with_chat_template(tokenizer, (TEMPLATES / name).read_text())
    try:
        (row,) = prepare([[{"role": "assistant", "content": "Hello there."}, *TALK]], changed, 2048, Recorder()).rows
    except JobError as refusal:
        assert "does not take a row" in str(refusal)
        return
    first = learned(row.sequences[0], changed)[0]
    # What ends a turn depends on the template, and thoughts that the prompt begins have an end.
    assert first.lstrip().removeprefix("</think>").lstrip().startswith("Hello there.") and "One?" not in first


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
QWEN = TEMPLATES / "qwen2.5.jinja"


@pytest.fixture
def with_tools(tokenizer):
    """The tokenizer with a chat template that writes tools."""
    return with_chat_template(tokenizer, QWEN.read_text())


def call(city: str, id: str = "call_1") -> dict:
    return {"id": id, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}


def with_calls(*calls: dict, **last) -> dict:
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "12 degrees"} for each in calls]
    asked = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "Weather?"},
    ]
    return {
        "tools": [TOOL],
        "messages": [
            *asked,
            {"role": "assistant", "content": "", "tool_calls": list(calls)},
            *results,
            {"role": "assistant", "content": "Mild.", **last},
        ],
    }


def read(row: dict):
    return parse_row(json.dumps(row).encode(), 7)


def test_results_are_read_in_the_order_of_their_calls():
    row = with_calls(call("Oslo"), call("Lima", "call_2"), call("Rome", "call_3"))
    given = row["messages"]
    swapped = [*given[:3], given[5], given[3], given[4], *given[6:]]
    ids = [message.get("tool_call_id") for message in read({**row, "messages": swapped})[3:6]]
    assert ids == ["call_1", "call_2", "call_3"]


def test_calls_of_tools_are_learned_as_the_template_writes_them(with_tools):
    row = read(with_calls(call("Oslo"), call("Lima", "call_2")))
    sequence = only_sequence(row, with_tools)
    assert learned(sequence, with_tools) == [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call><|im_end|>',
        "Mild.<|im_end|>",
    ]
    text = with_tools.decode(sequence.ids)
    assert '{"type": "function", "function": {"name": "weather"' in text
    assert text.count("12 degrees") == 2
    assert "Be short." in text
    unlearned = with_calls(call("Oslo"), weight=0)
    assert len(learned(only_sequence(read(unlearned), with_tools), with_tools)) == 1


def test_tools_and_calls_are_words_where_the_template_has_none(tokenizer):
    row = read(with_calls(call("Oslo")))
    sequence = only_sequence(row, tokenizer)
    text = tokenizer.decode(sequence.ids)
    assert "You can call tools. Each line between <tools> and </tools> describes one of them" in text
    first, *_ = learned(sequence, tokenizer)
    assert first.startswith('<tool_call>\n{"name": "')
    assert first.endswith("}\n</tool_call><|im_end|>")
    assert "<tool_response>\n" in text


def test_a_count_has_the_tokens_of_tools_and_names_the_rows_that_no_job_takes(tokenizer, with_tools, tmp_path):
    row = with_calls(call("Oslo"))
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    counted = count(with_tools, file, 2048).summary(2048)
    assert counted["tokens"] == len(only_sequence(read(row), with_tools).ids)
    in_words = count(tokenizer, file, 2048).summary(2048)
    assert in_words["tokens"] == len(only_sequence(read(row), tokenizer).ids)
    file.write_text(json.dumps(with_calls(call("<|im_end|>"))))
    # At a length that cuts it, too.
    for max_length in (2048, 8):
        counted = count(with_tools, file, max_length).summary(max_length)
        assert [each["row"] for each in counted["refused"]] == [1]
        assert "spells a control token" in counted["refused"][0]["message"]


def test_a_call_that_spells_a_control_token_is_refused(with_tools):
    with pytest.raises(JobError, match=r"spells a control token"):
        prepare([read(with_calls(call("<|im_end|>")))], with_tools, 2048, Recorder())


def test_an_empty_answer_teaches_the_end_token(tokenizer):
    sequence = only_sequence([TALK[0], {"role": "assistant", "content": ""}], tokenizer)
    assert learned(sequence, tokenizer) == ["<|im_end|>"]


def test_a_template_that_changes_earlier_turns_gives_one_text_for_each_turn(tokenizer):
    class Rewriting:
        """Like some reasoning models: the last turn starts with an empty thought, which earlier turns lose."""

        all_special_tokens = ("<|im_end|>",)
        eos_token = "<|im_end|>"
        added_tokens_decoder = types.MappingProxyType({})

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
        (GOOD + "{oops\n", "Row 2 is not in the form that the service writes for the objective 'sft'"),
        (GOOD + "[]\n", "Row 2 is not in the form that the service writes"),
        (GOOD + '{"prompt":"a","completion":"b"}\n', "Row 2 is not in the form that the service writes"),
        (GOOD * 2 + '{"messages":[{"content":"a"}]}\n', "Row 3 is not in the form that the service writes"),
        ("", "The dataset has no rows."),
    ],
)
def test_a_bad_dataset_is_refused_with_the_row(job, text, message):
    spec = read_spec(job(text=text))
    with pytest.raises(JobError, match=message.replace(".", r"\.")) as raised:
        read_rows(Path(spec.dataset.path), spec.dataset.sha256)
    assert raised.value.code == "dataset_invalid"
