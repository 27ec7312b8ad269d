"""What a run reports of its result is computed as the result will be served: in float32, on the base's own weights."""

import pytest
import torch
from peft import PeftModel
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from trainer.model.load import load_tokenizer
from trainer.run import evaluate, probe
from trainer.run.artifact import write_folder
from trainer.tests.conftest import DEVICE
from trainer.tests.make_tiny import make_tiny
from trainer.tests.test_packing import gradients, shake
from trainer.tests.test_preferences import PAIRS, dpo_loss, lines

FULL = {"method": "full", "lora": None}
PROMPTS = [[{"role": "user", "content": text}] for text in ("Item 1", "And of the sky?", "Two and two?")]
SETTINGS = [
    pytest.param({}, "bfloat16", {}, id="lora"),
    pytest.param({"method": "qlora"}, "float32", {}, id="qlora in float32", marks=pytest.mark.full),
    # Some layers without an adapter.
    pytest.param({"method": "qlora", "lora": {"target_modules": ["q_proj", "down_proj"]}}, "bfloat16", {}, id="qlora"),
    pytest.param(FULL, "bfloat16", {}, id="full"),
    pytest.param({}, "bfloat16", {"family": "Qwen2"}, id="biases", marks=pytest.mark.full),
    pytest.param(
        {}, "bfloat16", {"family": "Gemma2", "attn_logit_softcapping": None, "head_dim": 16}, id="other layers"
    ),
    pytest.param({"lora": {"dropout": 0.1}}, "bfloat16", {}, id="dropout", marks=pytest.mark.full),
]


@pytest.fixture
def trained(job, loop_of, tmp_path):
    """A loop whose weights were shaken, and its result by transformers and peft alone, in float32."""

    def make(changes: dict, precision: str, base: dict, **spec):
        # Logits far apart: rounding is then seen in them.
        path = make_tiny(tmp_path / "base", vocab_size=2048, initializer_range=0.2, **base)
        loop = loop_of(job(base={"path": str(path)}, evaluation={"split": 0.3}, **changes, **spec), precision=precision)
        if loop.objective.missing(loop.data.rows):
            loop.reference_of([*loop.data.rows, *loop.validation.rows.rows])
        shake(loop.model)
        write_folder(loop.model, load_tokenizer(loop.spec), loop.spec, tmp_path / "out")
        if loop.spec.method == "full":
            return loop, AutoModelForCausalLM.from_pretrained(tmp_path / "out/hf", dtype=torch.float32).to(DEVICE)
        plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(DEVICE)
        return loop, PeftModel.from_pretrained(plain, tmp_path / "out/adapter").eval()

    return make


@torch.no_grad()
def plain_loss(model, rows) -> float:
    losses = []
    for row in rows:
        (sequence,) = row.sequences
        ids = torch.tensor(sequence.ids[None].astype("int64"), device=DEVICE)
        trained = torch.tensor(sequence.trained, device=DEVICE)[1:]
        losses.append(
            cross_entropy(model(input_ids=ids).logits[0, :-1][trained], ids[0, 1:][trained], reduction="none")
        )
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize(("changes", "precision", "base"), SETTINGS)
def test_the_validation_loss_is_that_of_the_result(trained, changes, precision, base):
    loop, plain = trained(changes, precision, base)
    rows = loop.validation.rows
    scores = loop.objective.score(loop.model, rows, loop.limits, 4)
    assert scores.loss == pytest.approx(plain_loss(plain, rows.rows), rel=1e-4)


@pytest.mark.parametrize(("changes", "precision", "base"), [SETTINGS[0], SETTINGS[2]])
def test_the_margin_is_that_of_the_result(trained, changes, precision, base):
    loop, plain = trained(changes, precision, base, text=lines(PAIRS), options={"objective": "dpo"})
    rows = loop.validation.rows.rows
    scores = loop.objective.score(loop.model, loop.validation.rows, loop.limits, 4)
    with torch.no_grad():
        assert scores.loss == pytest.approx(float(sum(dpo_loss(plain, row, {}) for row in rows)) / len(rows), rel=1e-3)


@pytest.mark.parametrize(("changes", "precision", "base"), [SETTINGS[0], SETTINGS[2]])
def test_answers_are_those_of_the_result(trained, changes, precision, base):
    loop, plain = trained(changes, precision, base)
    tokenizer = load_tokenizer(loop.spec)
    answers = evaluate.generate_answers(loop.model, tokenizer, PROMPTS, 24, 2048, loop.device)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        greedy = plain.generate(**ids.to(DEVICE), max_new_tokens=24, do_sample=False)
        expected = greedy[0, ids["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU drafts with the quantized base")
def test_answers_of_a_quantized_base_take_a_pass_a_token(trained, monkeypatch):
    """Its drafts would often be wrong, and as slow."""
    loop, _ = trained({"method": "qlora"}, "float32", {})
    passes = []
    likeliest = evaluate._likeliest
    monkeypatch.setattr(evaluate, "_likeliest", lambda *given: passes.append(1) or likeliest(*given))
    evaluate.generate_answers(loop.model, load_tokenizer(loop.spec), PROMPTS, 24, 2048, loop.device)
    assert len(passes) <= 24 + 1


@pytest.mark.parametrize(("changes", "precision", "base"), [SETTINGS[0], SETTINGS[2], SETTINGS[3]])
def test_a_training_computes_as_before_after_an_evaluation(trained, changes, precision, base):
    loop, _ = trained(changes, precision, base)
    before_loss, before = gradients(loop, loop.data.rows[:4])
    before = {name: gradient.clone() for name, gradient in before.items()}
    loop.optimizer.zero_grad()
    loop.objective.score(loop.model, loop.validation.rows, loop.limits, 4)
    probe.log_probabilities(loop.model, loop.validation.rows.examples, loop.device)
    after_loss, after = gradients(loop, loop.data.rows[:4])
    assert after_loss == before_loss
    assert all(torch.equal(gradient, before[name]) for name, gradient in after.items())
