"""Held-out rows, early stopping, the best state, kept states and answers to prompts are exact, also after an
interruption.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainer.model.load import load_tokenizer
from trainer.run.save import save_result
from trainer.tests.conftest import conversations
from trainer.tests.test_loop import assert_same, stop_after, weights

SPLIT = {
    "split": 0.25,
    "every_steps": 3,
    "keep": 2,
    "prompts": [[{"role": "user", "content": "Item 1"}]],
    "answer_tokens": 5,
}


def losses(loop) -> list[tuple[int, float]]:
    return [
        (data["step"], data["validation_loss"]) for data in loop.protocol.of("metrics") if "validation_loss" in data
    ]


def test_held_out_rows_are_never_learned_and_the_seed_chooses_them(job, loop_of):
    loop = loop_of(job("one", evaluation=SPLIT))
    held_out = {row.number for row in loop.validation.rows.rows}
    learned = {row.number for row in loop.data.rows}
    assert (len(held_out), len(learned), held_out & learned) == (6, 18, set())
    assert loop.steps_per_epoch == 5
    other = loop_of(job("other", evaluation=SPLIT, training={"seed": 7}))
    assert {row.number for row in other.validation.rows.rows} != held_out


def test_the_best_state_is_the_result_and_the_newest_are_kept(job, loop_of):
    folder = job(
        evaluation={**SPLIT, "every_steps": 7}, training={"learning_rate": 0.05, "scheduler": "constant", "epochs": 12}
    )
    loop = loop_of(folder)
    assert loop.run()
    evaluations = losses(loop)
    assert [step for step, _ in evaluations] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    # The best state differs between CPUs and may be the last one, so this test sets it.
    loop.validation.best = best = next(recent for recent in loop.validation.recent if recent.step == 56)
    result = save_result(loop, load_tokenizer(loop.spec), folder)
    assert (result["step"], result["validation_loss"]) == (56, dict(evaluations)[56])
    (scored,) = [data for data in loop.protocol.of("metrics") if data["step"] == 56 and "validation_loss" in data]
    assert result["train_loss"] == scored["train_loss"] != loop.train_loss, "both losses are of the step that is kept"
    assert [recent["step"] for recent in result["kept"]] == [60]
    adapter, snapshot = load_file(Path(result["folder"]) / "adapter_model.safetensors"), load_file(best.path)
    assert all(torch.equal(adapter[name.replace(".default", "")], value) for name, value in snapshot.items())
    assert result["kept"][0]["gguf_sha256"] != result["gguf_sha256"]


def test_the_lowest_validation_loss_is_the_best(job, loop_of):
    loop = loop_of(
        job(evaluation={**SPLIT, "every_steps": 1}, training={"learning_rate": 0.05, "scheduler": "constant"})
    )
    loop.run()
    assert (loop.validation.best.step, loop.validation.best.loss) == min(losses(loop), key=lambda one: one[1])


def test_a_run_without_patience_left_ends_early(job, loop_of):
    evaluation = {**SPLIT, "every_steps": 1, "patience": 2}
    loop = loop_of(job(evaluation=evaluation, training={"learning_rate": 0.3, "scheduler": "constant"}))
    assert loop.run()
    evaluations = [loss for _, loss in losses(loop)]
    assert loop.totals.ended_early and len(evaluations) == loop.totals.step < loop.steps_total
    assert min(evaluations) == evaluations[-3]
    assert loop.protocol.of("log")[-1]["best_step"] == loop.totals.step - 2


def test_an_interrupted_run_evaluates_and_ends_like_an_uninterrupted_one(job, loop_of):
    settings = {"evaluation": {**SPLIT, "patience": 1}, "training": {"learning_rate": 0.02}}
    whole = loop_of(job("whole", **settings))
    assert whole.run()
    first = loop_of(job("first", **settings))
    second = loop_of(job("second", **settings, resume_from=stop_after(first, 5)))
    assert second.totals.step == 5
    assert second.run()
    assert losses(first)[:1] + losses(second) == losses(whole)
    assert [recent.sha256 for recent in second.validation.recent] == [
        recent.sha256 for recent in whole.validation.recent
    ]
    assert (
        second.validation.restore_best(second.parameters).step == whole.validation.restore_best(whole.parameters).step
    )
    assert_same(weights(whole), weights(second))
    assert torch.equal(whole.state.row_losses, second.state.row_losses)
    assert second.protocol.of("sample")[0]["base"] == first.protocol.of("sample")[0]["base"]


# The interruptible sections: the base's answers, three steps, then the evaluation's losses and its answers.
@pytest.mark.parametrize(
    ("stopped_in", "saved"),
    [
        pytest.param(4, 2, id="step", marks=pytest.mark.full),
        pytest.param(5, 3, id="losses", marks=pytest.mark.full),
        pytest.param(6, 3, id="answers"),
    ],
)
def test_work_interrupted_by_a_stop_is_repeated_identically(job, loop_of, stopped_in, saved):
    settings = {"evaluation": SPLIT, "training": {"epochs": 2, "learning_rate": 0.02}}
    whole = loop_of(job("whole", **settings))
    assert whole.run()
    first = loop_of(job("first", **settings))
    first.protocol.stop_at_section = stopped_in
    assert first.run() is False
    written = first.protocol.of("checkpoint")
    assert [data["step"] for data in written] == [saved], "the last step that was finished is saved"
    second = loop_of(
        job("second", **settings, resume_from=[{key: written[0][key] for key in ("path", "sha256", "step")}])
    )
    assert second.run()
    assert losses(first) + losses(second) == losses(whole)
    assert first.protocol.of("sample") + second.protocol.of("sample") == whole.protocol.of("sample")
    assert_same(weights(whole), weights(second))
    assert torch.equal(whole.state.row_losses, second.state.row_losses)


def test_samples_have_the_bases_answers_too(job, loop_of):
    loop = loop_of(job(evaluation=SPLIT, training={"learning_rate": 0.05, "epochs": 2}))
    loop.run()
    samples = loop.protocol.of("sample")
    assert [sample["step"] for sample in samples] == [3, 6, 9, 10]
    assert len({sample["base"] for sample in samples}) == 1
    assert samples[-1]["answer"] != samples[-1]["base"]


def test_answers_equal_transformers_generation(job, loop_of):
    from transformers import AutoModelForCausalLM

    from trainer.run.evaluate import generate_answers

    loop = loop_of(job())
    tokenizer = load_tokenizer(loop.spec)
    prompts = [[{"role": "user", "content": text}] for text in ("Hi", "A longer question, with more words in it?")]
    found = generate_answers(loop.model, tokenizer, prompts, 8, 2048, loop.device)
    base = AutoModelForCausalLM.from_pretrained(loop.spec.base.path, dtype=torch.float32)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
            "input_ids"
        ]
        expected = base.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        assert answer == tokenizer.decode(expected, skip_special_tokens=True)


def test_a_row_that_contradicts_the_others_is_listed_first(job, loop_of):
    rows = [
        [{"role": "user", "content": "Colour of the sky?"}, {"role": "assistant", "content": "blue"}] for _ in range(15)
    ]
    rows.insert(
        6,
        [{"role": "user", "content": "Colour of the sky?"}, {"role": "assistant", "content": "a large green tractor"}],
    )
    folder = job(rows=rows, training={"epochs": 8, "learning_rate": 0.02})
    loop = loop_of(folder)
    loop.run()
    result = save_result(loop, load_tokenizer(loop.spec), folder)
    listed = [json.loads(line) for line in Path(result["rows"]).read_text().splitlines()]
    assert len(listed) == 16 and listed[0]["row"] == 7
    assert all(math.isfinite(row["loss"]) and row["tokens"] > 0 for row in listed)
    assert listed[-1]["loss"] < listed[-1]["first_loss"]


def test_a_separate_validation_dataset_is_used(job, loop_of):
    separate = job("own", rows=conversations()[:5])
    spec = json.loads((separate / "spec.json").read_text())
    loop = loop_of(job("run", evaluation={"dataset": spec["dataset"]}))
    assert (len(loop.data.rows), len(loop.validation.rows.rows)) == (24, 5)
    assert loop.run()
    assert len(losses(loop)) == 4


def test_one_row_cannot_be_split(job, loop_of):
    from trainer.runtime.errors import JobError

    with pytest.raises(JobError, match="at least two"):
        loop_of(job(rows=conversations()[:1], evaluation=SPLIT))
