"""An ONNX folder in ONNX Runtime computes what the checkpoint computes in torch, also with its KV cache."""

import json

import numpy as np
import pytest
import torch

from tests.families.checkpoints import write
from trainer.export.onnx import PRECISIONS, answers, build, finish
from trainer.export.onnx_session import Session
from trainer.runtime.errors import JobError
from trainer.tests.make_tiny import make_tiny

MESSAGES = [
    [{"role": "user", "content": "Say something."}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "12 and 7?"}],
]
TOKENS = list(range(300, 390))
# Each family covers a feature: biases, query and key norms, another activation, an offset of norms.
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma"]


def silent(_done: float) -> None:
    pass


def export(base, work, precision):
    """Makes the ONNX folder of a checkpoint under `work`."""
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
    """The reference answers, as the trainer makes them."""
    from transformers import AutoTokenizer

    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    rows = []
    for messages in MESSAGES:
        prompt = list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
        generated = model.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=2, pad_token_id=2
        )
        answer = generated[0, len(prompt) :].tolist()
        scores = model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        chosen = [float(scores[len(prompt) - 1 + index, token]) for index, token in enumerate(answer)]
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
    return {"version": 2, "rows": rows}


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """Makes the tiny base's folder in a precision, once."""
    made = {}

    def make(precision: str):
        if precision not in made:
            made[precision] = export(tiny, tmp_path_factory.mktemp("onnx"), precision)
        return made[precision]

    return make


@pytest.mark.full
def test_answers_in_fp32_equal_torchs(tiny, exported):
    reference = reference_of(tiny)
    found = answers(exported("fp32"), reference, 1, silent)
    for exported_row, reference_row in zip(found, reference["rows"], strict=True):
        for name in ("messages", "prompt_tokens", "answer_tokens", "answer"):
            assert exported_row[name] == reference_row[name]
        assert np.abs(np.subtract(exported_row["log_probabilities"], reference_row["log_probabilities"])).max() < 1e-4


# Random weights of this size have little tolerance for few bits.
@pytest.mark.parametrize(("precision", "max_error"), [("fp32", 1e-4), ("fp16", 5e-3), ("int8", 5e-2), ("int4", 0.3)])
def test_each_precision_computes_the_checkpoints_logits(tiny, exported, precision, max_error):
    session = Session(exported(precision), 1)
    found = session.run(TOKENS, session.empty())[0]
    expected = logits_of(tiny, TOKENS)
    scale = expected.std()
    assert np.sqrt(np.mean((found - expected) ** 2)) / scale < max_error


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_with_the_kv_cache_equal_a_whole_pass(exported, precision):
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
def test_right_padded_batches_equal_single_rows(exported, precision):
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


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_each_model_family_exports(family, tmp_path):
    more = {"head_dim": 32} if family in ("Qwen3", "Gemma") else {}
    base = make_tiny(tmp_path / "base", family=family, vocab_size=2048, **more)
    session = Session(export(base, tmp_path, None), 1)
    assert np.abs(session.run(TOKENS, session.empty())[0] - logits_of(base, TOKENS)).max() < 1e-3


def test_layers_with_a_window_have_a_rope_and_a_cache_of_their_own(tmp_path):
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    base = make_tiny(tmp_path / "base", family="Gemma3", vocab_size=2048, head_dim=32, **kinds)
    session = Session(export(base, tmp_path, None), 1)
    # Longer than the window.
    assert np.abs(session.run(TOKENS, session.empty())[0] - logits_of(base, TOKENS)).max() < 1e-3


@pytest.mark.parametrize("family", ["smollm3", "lfm2"])
def test_layers_without_rope_and_short_convolutions_export(tmp_path, family):
    write(family, tmp_path / "base")
    session = Session(export(tmp_path / "base", tmp_path, None), 1)
    expected = logits_of(tmp_path / "base", TOKENS)
    first, cache = session.run(TOKENS[:60], session.empty())
    logits = np.concatenate([first, session.run(TOKENS[60:], cache)[0]])
    assert np.abs(logits - expected).max() < 1e-3


def test_the_folder_has_the_layout_that_its_readers_expect(tiny, exported):
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


def test_an_unknown_precision_is_refused_before_anything_is_made(tiny, tmp_path):
    with pytest.raises(JobError) as generated:
        export(tiny, tmp_path, "Q4_K_M")
    assert generated.value.code == "parameter_not_supported" and "fp32, fp16, int8, int4" in str(generated.value)
    assert not list(tmp_path.iterdir())


def test_an_unsupported_architecture_is_refused(tmp_path):
    base = make_tiny(tmp_path / "base", family="StableLm", vocab_size=2048)
    with pytest.raises(JobError) as generated:
        export(base, tmp_path, "fp32")
    assert generated.value.code == "parameter_not_supported" and "StableLmForCausalLM" in str(generated.value)
    assert not (tmp_path / "out").exists()


def test_layers_that_the_builder_fails_at_are_a_sentence(tmp_path):
    write("granite_h", tmp_path / "base")
    with pytest.raises(JobError, match=r"GraniteMoeHybridForCausalLM: .* fails .*Export it as huggingface or gguf\.$"):
        export(tmp_path / "base", tmp_path, "fp32")
