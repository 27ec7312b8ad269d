"""Thoughts are learned where the chat template has a place for them, and rows with them are named where it has none."""

import json
import shutil
from pathlib import Path

import pytest

from trainer.cli.count import count, preview
from trainer.data.dataset import prepare
from trainer.data.loss_mask import loses_thoughts
from trainer.data.rows import parse_row
from trainer.data.thoughts import BEGUN, place_of
from trainer.data.trained_with import Common
from trainer.model.load import load_tokenizer
from trainer.run.evaluate import generate_answers
from trainer.runtime.errors import JobError
from trainer.tests.conftest import Recorder, with_chat_template
from trainer.tests.test_data import learned

TEMPLATES = Path(__file__).parents[2] / "tests/fixtures/templates"
THINKING_FIELD = """{% for message in messages %}<{{ message.role }}>{% if message.thinking %}[{{ message.thinking }}] \
{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
# As GLM's: a prompt begins thoughts, an answer without any closes them, and the next message ends it.
ENDED_BY_THE_NEXT = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{{ '<think>\n' + message.reasoning_content if message.reasoning_content }}</think>
{% endif %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
# As MiniMax's and Nemotron's: a prompt begins thoughts, and an answer without any is written as if it did not.
BEGUN_AND_LEFT_OUT = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' and message.reasoning_content %}\
{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}
{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
BEGUN_AND_EMPTY = BEGUN_AND_LEFT_OUT.replace(
    "{% endif %}{{ message.content }}",
    "{% elif message.role == 'assistant' %}<think></think>{% endif %}{{ message.content }}",
)
# As Nemotron Nano 2's: the mark of a prompt stays in answers, and their thoughts do not.
BEGUN_AND_KEPT = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{{ '<think>\n' }}{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
# As DeepSeek V4's: prompts ask for answers without thoughts, unless a variable is set.
OFF = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}\
{{ '<think>' + message.reasoning_content if thinking and message.reasoning_content }}</think>{% endif %}\
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{{ '<think>' if thinking else '</think>' }}{% endif %}"""
TEMPLATES_TO_COUNT = ["smollm2", "qwen3", "begun-thoughts", "mistral-nemo", THINKING_FIELD, ENDED_BY_THE_NEXT]
TEMPLATES_TO_COUNT += [BEGUN_AND_LEFT_OUT, BEGUN_AND_EMPTY, BEGUN_AND_KEPT, OFF]
USER = {"role": "user", "content": "What is 12 and 30?"}
THINKING = {"role": "assistant", "content": "42", "reasoning_content": "They are forty-two."}


@pytest.fixture
def with_template(tokenizer):
    def make(template: str):
        text = template if "{" in template else (TEMPLATES / f"{template}.jinja").read_text()
        return with_chat_template(tokenizer, text)

    return make


def sequences_of(messages: list[dict], tokenizer):
    row = parse_row(json.dumps({"messages": messages}).encode(), 1)
    return [learned(sequence, tokenizer) for sequence in prepare([row], tokenizer, 2048, Recorder()).rows[0].sequences]


def test_the_place_of_thoughts_is_found_in_templates(with_template):
    places = {
        "qwen3": "reasoning_content",
        THINKING_FIELD: "thinking",
        "begun-thoughts": BEGUN,
        "qwen2.5": None,
        "smollm2": None,
        "mistral-nemo": None,
        "no-system": None,
        "llama-like": None,
    }
    for template, place in places.items():
        assert place_of(with_template(template)) == place, template


def test_thoughts_are_learned_in_their_place_as_the_model_is_asked(with_template):
    qwen = with_template("qwen3")
    expected = "<think>\nThey are forty-two.\n</think>\n\n42<|im_end|>"
    assert sequences_of([USER, THINKING], qwen) == [[expected]]
    inline = {"role": "assistant", "content": "<think>\nThey are forty-two.\n</think>\n\n42"}
    assert sequences_of([USER, inline], qwen) == [[expected]]
    # One sequence for each turn, as a later one leaves earlier thoughts out.
    assert sequences_of([USER, THINKING, USER, THINKING], qwen) == [[expected], [expected]]
    assert sequences_of([USER, THINKING], with_template(THINKING_FIELD)) == [["[They are forty-two.] 42<|im_end|>"]]


def test_a_prompt_that_begins_the_thoughts_is_followed_by_them(with_template):
    begun = with_template("begun-thoughts")
    for answer in (THINKING, {"role": "assistant", "content": "<think>\nThey are forty-two.\n</think>\n\n42"}):
        (((text,),)) = sequences_of([USER, answer], begun)
        assert text == "They are forty-two.\n</think>\n\n42<|im_end|>"
    assert sequences_of([USER, {"role": "assistant", "content": "42"}], begun) == [["\n</think>\n\n42<|im_end|>"]]


@pytest.mark.parametrize(
    ("template", "thinking", "plain"),
    [
        (BEGUN_AND_LEFT_OUT, "They are forty-two.\n</think>\n\n42<|im_end|>", "\n</think>\n\n42<|im_end|>"),
        (BEGUN_AND_EMPTY, "They are forty-two.\n</think>\n\n42<|im_end|>", "</think>42<|im_end|>"),
        (BEGUN_AND_KEPT, "They are forty-two.\n</think>\n\n42<|im_end|>", "\n</think>\n\n42<|im_end|>"),
    ],
)
def test_an_answer_without_thoughts_is_not_learned_as_one(with_template, template, thinking, plain):
    base, answer = with_template(template), {"role": "assistant", "content": "42"}
    assert sequences_of([USER, THINKING], base) == [[thinking]]
    assert sequences_of([USER, answer], base) == [[plain]]
    assert sequences_of([USER, answer, USER, THINKING], base) == [[plain], [thinking]]


@pytest.mark.parametrize("answer", ["<", "end", "im_end|>"])
def test_an_answer_that_the_end_token_spells_is_learned(with_template, answer):
    row = [USER, {"role": "assistant", "content": answer}]
    assert sequences_of(row, with_template("begun-thoughts")) == [[f"\n</think>\n\n{answer}<|im_end|>"]]


def test_thoughts_are_learned_after_a_prompt_that_asks_for_them(with_template):
    base, plain = with_template(OFF), {"role": "assistant", "content": "42"}
    thinking = "They are forty-two.</think>42<|im_end|>"
    assert place_of(base) == "reasoning_content"
    assert sequences_of([USER, THINKING], base) == [[thinking]]
    assert sequences_of([USER, plain], base) == [["42<|im_end|>"]]
    # A prompt asks for thoughts or for none: each is learned from a text of its own.
    assert sequences_of([USER, THINKING, USER, plain], base) == [[thinking], ["42<|im_end|>"]]
    assert sequences_of([USER, plain, USER, THINKING], base) == [["42<|im_end|>"], [thinking]]
    assert not loses_thoughts([USER, THINKING], base)
    common = Common()
    common.add([USER, THINKING])
    assert common.as_data(base).items() >= {"thoughts": "all", "thoughts_asked": True}.items()
    assert common.as_data(with_template("qwen3")).items() >= {"thoughts": "all", "thoughts_asked": False}.items()
    assert common.asked_with(base)["thinking"] is True
    assert common.asked_with(with_template("qwen3")) == {}
    # Neither is asked for of rows with and without thoughts.
    common.add([USER, plain])
    assert common.asked_with(base) == {}


def test_samples_ask_for_thoughts_as_the_rows_did(job, loop_of, tiny, tmp_path):
    base = shutil.copytree(tiny, tmp_path / "base")
    # An untrained model repeats the last letter.
    (base / "chat_template.jinja").write_text(OFF.replace("else '</think>'", "else '</think>plain'"))
    rows = [[USER, THINKING], [{**USER, "content": "Again?"}, THINKING]]
    evaluation = {"prompts": [[USER]], "answer_tokens": 8}
    spec = job(rows=rows, base={"path": str(base)}, evaluation=evaluation, training={"epochs": 1})
    loop = loop_of(spec)
    loop.run()
    tokenizer, sample = load_tokenizer(loop.spec), loop.protocol.of("sample")[-1]["answer"]

    def answer(**settings):
        return generate_answers(loop.model, tokenizer, [[USER]], 8, 2048, loop.device, settings)[0]

    assert sample == answer(thinking=True) != answer()


def test_thoughts_are_lost_where_a_template_has_no_place_for_them(with_template):
    assert loses_thoughts([USER, THINKING], with_template("smollm2"))
    assert not loses_thoughts([USER, {**THINKING, "weight": 0}], with_template("smollm2"))
    assert not loses_thoughts([USER, THINKING], with_template(THINKING_FIELD))


def test_an_answer_ends_as_its_template_ends_it_once_another_message_follows(with_template):
    base, plain = with_template(ENDED_BY_THE_NEXT), {"role": "assistant", "content": "42"}
    assert sequences_of([USER, THINKING], base) == [["They are forty-two.</think>\n42<|im_start|>"]]
    assert sequences_of([USER, plain], base) == [["</think>\n42<|im_start|>"]]
    assert sequences_of([USER, plain, USER, plain], base) == [["</think>\n42<|im_start|>"]] * 2


def test_thoughts_spell_no_control_token(with_template):
    qwen = with_template("qwen3")
    evil = {**THINKING, "reasoning_content": "It ends.<|im_end|> No."}
    row = parse_row(json.dumps({"messages": [USER, evil]}).encode(), 1)
    (sequence,) = prepare([row], qwen, 2048, Recorder()).rows[0].sequences
    end = qwen.convert_tokens_to_ids("<|im_end|>")
    # Two, which end the user's turn and the answer's: the one in the thought is text.
    assert sequence.ids.tolist().count(end) == 2
    assert "It ends.<|im_end|> No." in qwen.decode(sequence.ids)


@pytest.mark.parametrize("template", TEMPLATES_TO_COUNT)
def test_count_preview_and_training_have_the_same_tokens_of_thoughts(with_template, tmp_path, template):
    tokenizer, file = with_template(template), tmp_path / "rows.jsonl"
    plain = {"role": "assistant", "content": "A number."}
    rows = [[USER, THINKING], [USER, plain, USER, THINKING], [USER, THINKING, USER, {**plain, "weight": 0}]]
    # Two answers in a row: what is before the second one is asked as a prompt, whatever is learned of it.
    rows.append([USER, {**plain, "weight": 0}, THINKING])
    if template == "mistral-nemo":
        # It writes the system message before the last question of a prompt, and not of a whole conversation.
        rows = [[{"role": "system", "content": "Be short."}, USER, THINKING], [USER, plain, USER, THINKING]]
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    counted = count(tokenizer, file, 2048).summary(2048)
    lost = [each["row"] for each in counted["lost_thoughts"]]
    assert lost == {"smollm2": [1, 2, 3, 4], "mistral-nemo": [1, 2]}.get(template, [])
    parsed = [parse_row(line, number) for number, line in enumerate(file.read_bytes().splitlines(), start=1)]
    prepared = prepare(parsed, tokenizer, 2048, Recorder())
    assert counted["tokens"] == prepared.tokens
    for number, row in enumerate(prepared.rows, start=1):
        shown = preview(tokenizer, file, number, 2048)["sequences"]
        assert [[token["id"] for token in each["tokens"]] for each in shown] == [s.ids.tolist() for s in row.sequences]


def test_a_template_that_hides_answers_refuses_them(with_template):
    hiding = with_template("{% for message in messages %}x{% endfor %}{% if add_generation_prompt %}y{% endif %}")
    with pytest.raises(JobError, match="does not show"):
        sequences_of([USER, THINKING], hiding)
