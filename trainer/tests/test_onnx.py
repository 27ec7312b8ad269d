"""An ONNX folder says, in ONNX Runtime, what the checkpoint says in torch, with its cache and from what lies in it
alone.
"""

import json

import numpy as np
import pytest
import torch

from trainer.export.onnx import PRECISIONS, answers, build, finish
from trainer.export.onnx_session import Session
from trainer.runtime.errors import JobError
from trainer.tests.make_tiny import make_tiny

MESSAGES = [
    [{"role": "user", "content": "Say something."}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "12 and 7?"}],
]
TOKENS = list(range(300, 390))
# Each family has something that another has not: biases, norms of queries and keys, another activation, an offset of
# norms.
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma"]


def silent(_done: float) -> None:
    pass


def export(base, work, precision):
    """The folder for ONNX Runtime that is made of a checkpoint, below `work`."""
    build(base, work / "graph", precision, 1, silent)
    finish(base, work / "graph", work / "out", precision, silent)
    return work / "out"


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def logits_of(folder, tokens):
    return load(folder)(input_ids=torch.tensor([tokens])).logits[0].numpy()


@torch.inference_mode()
def reference_of(folder):
    """As the trainer's own answers are made."""
    from transformers import AutoTokenizer

    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    rows = []
    for messages in MESSAGES:
        prompt = list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
        told = model.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=2, pad_token_id=2
        )
        answer = told[0, len(prompt) :].tolist()
        scores = model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        chosen = [float(scores[len(prompt) - 1 + place, token]) for place, token in enumerate(answer)]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        rows.append(
            {
                "messages": messages,
                "prompt_tokens": prompt,
                "answer_tokens": answer,
                "answer": text,
                "log_probabilities": chosen,
            }
        )
    return {"version": 1, "rows": rows}


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """The tiny base in a precision, made once."""
    made = {}

    def make(precision: str):
        if precision not in made:
            made[precision] = export(tiny, tmp_path_factory.mktemp("onnx"), precision)
        return made[precision]

    return make


def test_the_answers_in_fp32_are_torchs(tiny, exported):
    reference = reference_of(tiny)
    found = answers(exported("fp32"), reference, 1, silent)
    for mine, theirs in zip(found, reference["rows"], strict=True):
        for name in ("messages", "prompt_tokens", "answer_tokens", "answer"):
            assert mine[name] == theirs[name]
        assert np.abs(np.subtract(mine["log_probabilities"], theirs["log_probabilities"])).max() < 1e-4


# Of random weights of this size, which have no room for the errors of few bits.
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-4), ("fp16", 5e-3), ("int8", 5e-2), ("int4", 0.3)])
def test_each_precision_computes_the_checkpoints_logits(tiny, exported, precision, most):
    session = Session(exported(precision), 1)
    found = session.run(TOKENS, session.empty())[0]
    expected = logits_of(tiny, TOKENS)
    scale = expected.std()
    assert np.sqrt(np.mean((found - expected) ** 2)) / scale < most


@pytest.mark.parametrize("precision", PRECISIONS)
def test_with_the_cache_each_step_says_what_the_whole_says_anew(exported, precision):
    session = Session(exported(precision), 1)
    whole = session.run(TOKENS, session.empty())[0]
    stepped, cache = session.run(TOKENS[:40], session.empty())
    for token in TOKENS[40:60]:
        logits, cache = session.run([token], cache)
        stepped = np.concatenate([stepped, logits])
    logits, cache = session.run(TOKENS[60:], cache)
    stepped = np.concatenate([stepped, logits])
    assert all(each.shape[2] == len(TOKENS) for each in cache.values())
    assert np.abs(stepped - whole).max() < (1e-4 if precision == "fp32" else 2e-2) * max(1.0, np.abs(whole).max())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_a_batch_that_are_filled_up_on_the_right_say_what_each_says_alone(exported, precision):
    session = Session(exported(precision), 1)
    rows = [TOKENS, TOKENS[30:50]]
    longest = len(rows[0])
    feeds = {name: value.repeat(2, axis=0) for name, value in session.empty().items()}
    feeds["input_ids"] = np.array([row + [0] * (longest - len(row)) for row in rows])
    feeds["attention_mask"] = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    (together,) = session.session.run(["logits"], feeds)
    for row, logits in zip(rows, together, strict=True):
        alone = session.run(row, session.empty())[0]
        assert np.abs(logits[: len(row)] - alone).max() < (1e-4 if precision == "fp32" else 2e-2) * max(
            1.0, np.abs(alone).max()
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_models(family, tmp_path):
    more = {"head_dim": 32} if family in ("Qwen3", "Gemma") else {}
    base = make_tiny(tmp_path / "base", family=family, **more)
    session = Session(export(base, tmp_path, None), 1)
    assert np.abs(session.run(TOKENS, session.empty())[0] - logits_of(base, TOKENS)).max() < 1e-3


def test_the_folder_is_laid_out_as_its_readers_expect(tiny, exported):
    for precision, how in PRECISIONS.items():
        folder = exported(precision)
        name = f"model{how.suffix}.onnx"
        assert sorted(path.name for path in (folder / "onnx").iterdir()) == [name, f"{name}_data"]
        assert json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["filename"] == f"onnx/{name}"
        assert json.loads((folder / "config.json").read_text())["transformers.js_config"]["dtype"] == how.dtype
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        assert template == (tiny / "chat_template.jinja").read_text()
        for same in ("tokenizer.json", "chat_template.jinja"):
            assert (folder / same).read_bytes() == (tiny / same).read_bytes()
        assert not list(folder.rglob("*.safetensors"))


def test_a_precision_that_there_is_not_is_refused_before_anything_is_made(tiny, tmp_path):
    with pytest.raises(JobError) as told:
        export(tiny, tmp_path, "Q4_K_M")
    assert told.value.code == "parameter_not_supported" and "fp32, fp16, int8, int4" in str(told.value)
    assert not list(tmp_path.iterdir())


def test_an_architecture_that_the_builder_does_not_know_is_refused(tmp_path):
    base = make_tiny(tmp_path / "base", family="StableLm")
    with pytest.raises(JobError) as told:
        export(base, tmp_path, "fp32")
    assert told.value.code == "parameter_not_supported" and "StableLmForCausalLM" in str(told.value)
    assert not (tmp_path / "out").exists()
