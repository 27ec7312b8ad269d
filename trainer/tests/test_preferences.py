"""Preference training: rows of pairs and of rated answers, their losses, and a resumed run."""

import json

import pytest
import torch
from torch.nn.functional import logsigmoid

from trainer.data.dataset import prepare
from trainer.data.packing import Limits
from trainer.data.rows import Pair, parse_row
from trainer.model import fast_lora
from trainer.model.load import lora_config, trainable
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import DEVICE, Recorder, pair_row, rated_row
from trainer.tests.test_packing import shake

QUESTIONS = [
    ("What is the colour of grass?", "Green.", "It is blue, I think."),
    ("And of the sky on a clear day in summer?", "The sky is blue.", "Red."),
    ("Name a prime number.", "Seven is prime.", "Nine is a prime number."),
    ("Is water wet?", "Yes.", "No, never."),
    ("Two and two?", "Four.", "Five of them."),
]
PAIRS = [pair_row(f"{question} ({n})", *rest) for n in range(3) for question, *rest in QUESTIONS]
RATED = [
    rated_row(pair["prompt"], pair[name]["content"], name == "chosen")
    for index, pair in enumerate(PAIRS)
    for name in [("chosen", "rejected")[index % 2]]
]


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def dpo(job):
    def make(name: str = "dpo", **options):
        changes = options.pop("changes", {})
        return job(name, text=lines(PAIRS), options={"objective": "dpo", **options}, **changes)

    return make


@pytest.fixture
def kto(job):
    def make(name: str = "kto", **options):
        changes = options.pop("changes", {})
        return job(name, text=lines(RATED), options={"objective": "kto", **options}, **changes)

    return make


def plain_model(folder):
    """The model with a shaken adapter, by transformers and peft alone."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    spec = read_spec(folder)
    base = AutoModelForCausalLM.from_pretrained(spec.base.path, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(spec.training.seed)
    model = get_peft_model(base.to(DEVICE), lora_config(spec.lora))
    shake(model)
    return model


def log_probability(model, sequence) -> torch.Tensor:
    ids = torch.tensor(sequence.ids[None].astype("int64"), device=DEVICE)
    trained = torch.tensor(sequence.trained, device=DEVICE)
    logits = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0][trained[1:]].sum()


def ratio(model, sequence) -> torch.Tensor:
    """The log-probability of an answer, less that without the adapter."""
    with torch.no_grad(), model.disable_adapter():
        reference = log_probability(model, sequence)
    return log_probability(model, sequence) - reference


def dpo_loss(model, row, options: dict) -> torch.Tensor:
    """The losses as the papers write them."""
    beta, share = options.get("beta", 0.1), options.get("label_smoothing", 0.0)
    chosen, rejected = (ratio(model, sequence) for sequence in row.sequences)
    margin = beta * (chosen - rejected)
    if options.get("loss_type") == "ipo":
        means = chosen / row.sequences[0].targets - rejected / row.sequences[1].targets
        return (means - 1 / (2 * beta)) ** 2
    if options.get("loss_type") == "robust":
        return (-logsigmoid(margin) * (1 - share) + logsigmoid(-margin) * share) / (1 - 2 * share)
    return -logsigmoid(margin) * (1 - share) - logsigmoid(-margin) * share


def assert_gradients(loop, model, loss: torch.Tensor) -> None:
    """The loop's loss and gradients of its first batch are those of `loss`."""
    loss.backward()
    loop.reference_of(loop.data.rows)
    shake(loop.model)
    found, figures = loop.gradients(loop.batch(0))
    assert found == pytest.approx(float(loss.detach()), abs=1e-5)
    assert figures.keys() == {"reward_margin", "reward_accuracy"}
    expected = {name: parameter.grad for name, parameter in trainable(model).items()}
    for name, parameter in loop.parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(tokens=150), Limits(documents=1)], ids=["one pack", "small packs", "no packing"]
)
def test_the_loss_of_pairs_and_its_gradients_are_those_of_separate_documents(dpo, loop_of, limits):
    loop = loop_of(folder := dpo())
    loop.limits = limits
    model = plain_model(folder)
    batch = loop.batch(0)
    assert_gradients(loop, model, sum(dpo_loss(model, row, {}) for row in batch) / len(batch))


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.5, "label_smoothing": 0.1},
        {"loss_type": "ipo", "beta": 0.2},
        {"loss_type": "robust", "label_smoothing": 0.2},
        {"sft_weight": 0.3},
    ],
    ids=["sigmoid", "ipo", "robust", "sft"],
)
def test_every_loss_of_pairs_is_that_of_its_paper(dpo, loop_of, options):
    loop = loop_of(folder := dpo(**options))
    model, batch = plain_model(folder), loop.batch(0)
    loss = sum(dpo_loss(model, row, options) for row in batch) / len(batch)
    chosen = [row.sequences[0] for row in batch]
    answers = sum(log_probability(model, sequence) for sequence in chosen) / sum(each.targets for each in chosen)
    assert_gradients(loop, model, loss - options.get("sft_weight", 0) * answers)


def test_the_loss_of_rated_answers_and_its_gradients_are_those_of_the_paper(kto, loop_of):
    loop = loop_of(folder := kto(desirable_weight=1.5, undesirable_weight=0.8))
    model, batch = plain_model(folder), loop.batch(0)
    with torch.no_grad():
        moved = []
        for row, before in zip(batch, [batch[-1], *batch[:-1]], strict=True):
            mismatched = loop.objective.mismatched[loop.objective.index[id(row)]].sequences[0]
            prompt = row.sequences[0].ids[: int(row.sequences[0].trained.argmax())].tolist()
            answer = before.sequences[0].ids[before.sequences[0].trained].tolist()
            assert mismatched.ids.tolist()[: len(prompt) + len(answer)] == prompt + answer
            assert mismatched.ids[mismatched.trained].tolist() == answer
            moved.append(ratio(model, mismatched))
        distance = torch.stack(moved).mean().clamp(min=0)
    loss = torch.zeros(())
    for row in batch:
        reward = ratio(model, row.sequences[0]) - distance
        value = torch.sigmoid(0.1 * (reward if row.label else -reward))
        loss = loss + (1.5 if row.label else 0.8) * (1 - value)
    assert_gradients(loop, model, loss / len(batch))


def test_a_fresh_adapter_has_the_loss_of_a_coin(dpo, loop_of):
    """The reference is the model at the start, so the first step knows nothing."""
    loop = loop_of(dpo())
    loop.reference_of(loop.data.rows)
    assert loop.gradients(loop.batch(0))[0] == pytest.approx(0.693147, abs=1e-5)


def test_adapters_are_left_out_only_where_they_are_zero(dpo, loop_of):
    if DEVICE != "cpu":
        pytest.skip("they are computed in each pass on a GPU")
    loop = loop_of(dpo())
    group = loop.batch(0)
    compute = loop.objective.reference_log_probabilities

    def both() -> list[torch.Tensor]:
        with torch.no_grad(), fast_lora.zero_adapters_skipped(loop.model):
            skipped = compute(loop.model, group, loop.limits)
        with torch.no_grad():
            return [skipped, compute(loop.model, group, loop.limits)]

    fresh = both()
    torch.testing.assert_close(*fresh, rtol=0, atol=1e-4)
    shake(loop.model)
    shaken = both()
    assert torch.equal(*shaken)
    assert not torch.allclose(fresh[0], shaken[0])


def answer_ids(sequence) -> list[int]:
    return sequence.ids[int(sequence.trained.argmax()) :].tolist()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_rated_answer_is_compared_with_itself(kto, loop_of, size):
    """Also the only row of a batch, and rows with the same answer side by side."""
    changes = {"training": {"batch_size": size}, "evaluation": {"split": 0.1}}
    loop = loop_of(kto(changes=changes))
    objective = loop.objective
    for row in [*loop.data.rows, *loop.validation.rows.rows]:
        other = objective.mismatched[objective.index[id(row)]]
        assert answer_ids(other.sequences[0]) != answer_ids(row.sequences[0])


def test_rated_answers_that_are_all_the_same_are_refused(job, loop_of):
    rows = [rated_row(pair["prompt"], "The same.", index % 2 == 0) for index, pair in enumerate(PAIRS)]
    with pytest.raises(JobError, match="All rows have the same answer") as refusal:
        loop_of(job("same", text=lines(rows), options={"objective": "kto"}))
    assert refusal.value.code == "dataset_invalid"


@pytest.mark.parametrize("odd", range(6))
def test_a_validation_split_leaves_two_rated_answers_to_compare(job, loop_of, odd):
    """Wherever the only other answer is, also among the rows that the seed holds out."""
    answers = ["Another." if index == odd else "The same." for index in range(6)]
    rows = [rated_row(f"Question {index}?", answer, index % 2 == 0) for index, answer in enumerate(answers)]
    changes = {"options": {"objective": "kto"}, "evaluation": {"split": 0.5}}
    loop = loop_of(job(f"odd-{odd}", text=lines(rows), **changes))
    assert len({tuple(answer_ids(row.sequences[0])) for row in loop.data.rows}) == 2
    learned, held_out = ([row.number for row in part.rows] for part in (loop.data, loop.validation.rows))
    assert (len(learned), sorted([*learned, *held_out])) == (3, list(range(1, 7)))


@pytest.mark.parametrize("objective", ["dpo", pytest.param("kto", marks=pytest.mark.full)])
def test_a_run_prefers_what_it_was_taught_and_resumes_exactly(dpo, kto, loop_of, objective):
    make = {"dpo": dpo, "kto": kto}[objective]
    changes = {"training": {"epochs": 6}, "evaluation": {"split": 0.2}, "checkpoint": {"keep": 9}}

    def run(name: str, recorder: Recorder | None = None, **more):
        loop = loop_of(make(name, changes={**changes, **more}), recorder)
        assert loop.run()
        return loop

    whole = run("whole", recorder := Recorder())
    scores = [event for event in recorder.of("metrics") if "validation_loss" in event]
    assert {"validation_reward_margin", "validation_reward_accuracy"} <= scores[-1].keys()
    steps = [event for event in recorder.of("metrics") if "loss" in event]
    assert steps[-1]["loss"] < steps[0]["loss"] and steps[-1]["reward_margin"] > steps[0]["reward_margin"]
    assert steps[-1]["reward_accuracy"] == 1
    first = recorder.of("checkpoint")[0]
    candidate = {"path": first["path"], "sha256": first["sha256"], "step": first["step"]}
    changed = Recorder()
    resumed = loop_of(make("resumed", changes={**changes, "resume_from": [candidate]}), changed)
    assert resumed.resumed and not resumed.objective.missing(resumed.data.rows), "the references are kept"
    assert resumed.run()
    assert not any(event.get("phase") == "reference" for event in changed.of("status"))
    for name, parameter in resumed.parameters.items():
        assert torch.equal(parameter, whole.parameters[name]), name


def test_a_stop_while_answers_are_scored_keeps_what_is_scored(dpo, loop_of, monkeypatch):
    monkeypatch.setattr("trainer.run.loop.REFERENCE_ROWS", 4)
    recorder = Recorder()
    recorder.stop_at_section = 3
    loop = loop_of(dpo("stopped"), recorder)
    assert not loop.run()
    (written,) = recorder.of("checkpoint")
    assert written["step"] == 0
    candidate = {"path": written["path"], "sha256": written["sha256"], "step": 0}
    resumed = loop_of(dpo("again", changes={"resume_from": [candidate]}))
    assert len(resumed.objective.missing(resumed.data.rows)) == len(PAIRS) - 4
    assert resumed.run()


def parsed(row: dict, objective: str = "dpo"):
    return parse_row(json.dumps(row).encode(), 7, objective)


def test_only_the_answers_of_pairs_and_rated_rows_are_learned():
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    pair = parsed({**pair_row(talk, "d", "e"), "line": 9})
    assert isinstance(pair, Pair) and pair.line == 9
    assert [[message["content"] for message in answer] for answer in pair] == [
        ["a", "b", "c", "d"],
        ["a", "b", "c", "e"],
    ]
    rated = parsed(rated_row(talk, "d", False), "kto")
    assert rated.label is False and rated.line == 7
    for conversation in (*pair, rated):
        assert [message.get("weight") for message in conversation] == [None, 0, None, None]


@pytest.mark.parametrize(
    ("row", "objective"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "dpo"),
        (rated_row("a", "b", True), "dpo"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "kto"),
        (pair_row("a", "b", "c"), "sft"),
    ],
)
def test_rows_of_another_kind_or_form_are_refused(row, objective):
    with pytest.raises(JobError, match=f"Row 7 is not in the form .* '{objective}'"):
        parsed(row, objective)


def test_a_long_prompt_loses_its_front_and_a_long_answer_its_row(tokenizer):
    recorder = Recorder()
    rows = [parsed(pair_row("word " * 100, "Yes.", "No, not at all.")), parsed(PAIRS[0])]
    whole = prepare(rows, tokenizer, 2048, recorder)
    cut = prepare(rows, tokenizer, 80, recorder)
    assert (whole.truncated_rows, cut.truncated_rows, cut.dropped_rows) == (0, 1, 0)
    for before, after in zip(whole.rows[0].sequences, cut.rows[0].sequences, strict=True):
        removed = len(before.ids) - len(after.ids)
        assert after.ids.tolist() == before.ids[removed:].tolist() and after.targets == before.targets
    assert max(len(sequence.ids) for sequence in cut.rows[0].sequences) == 80
    long = parsed(pair_row("Go on.", "word " * 100, "No."))
    left = prepare([long, rows[1]], tokenizer, 80, recorder)
    assert (len(left.rows), left.dropped_rows) == (1, 1)
    assert "left out" in recorder.events[-1][1]
