"""A merged checkpoint equals peft's merge, or the model as trained where peft differs; adapters that do not fit are
refused.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.export.folder import write_config
from trainer.model.adapter_changes import read_adapter
from trainer.model.merge import merge
from trainer.model.tensors import read_checkpoint
from trainer.runtime.errors import JobError
from trainer.tests.exporting import silent, write_adapter
from trainer.tests.make_tiny import make_tiny


def merged_by_peft(base, adapter):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), adapter)
    return model.merge_and_unload().state_dict()


def weights_of(folder):
    return {name: entry.whole() for name, entry in read_checkpoint(folder).items()}


LINEAR = ["q_proj", "v_proj", "down_proj"]
VARIANTS = {
    "all layers": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "rslora": {"r": 16, "lora_alpha": 4, "target_modules": LINEAR, "use_rslora": True},
    "patterns": {
        "r": 4,
        "target_modules": LINEAR,
        "rank_pattern": {"q_proj": 2, "model.layers.1.mlp.down_proj": 7},
        "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 64},
    },
    "one layer": {"r": 3, "target_modules": LINEAR, "layers_to_transform": [1]},
    "by an expression": {"r": 3, "target_modules": r".*layers\.0\..*(up|gate)_proj"},
    "biases": {"r": 2, "target_modules": ["q_proj"], "bias": "all"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_merged_weights_equal_pefts(tmp_path, variant, tiny, monkeypatch):
    # Several chunks with a shorter last one, and more than one file.
    monkeypatch.setattr("trainer.model.tensors.CHUNK_VALUES", 37 * 64)
    monkeypatch.setattr("trainer.model.merge.SHARD_BYTES", 400_000)
    base = make_tiny(tmp_path / "base", attention_bias=True, vocab_size=2048) if variant == "biases" else tiny
    adapter = write_adapter(base, tmp_path / "adapter", **VARIANTS[variant])
    out = tmp_path / "out"
    out.mkdir()
    assert not merge(base, read_adapter(adapter), out, None, silent).untied
    expected, found, before = merged_by_peft(base, adapter), weights_of(out), weights_of(base)
    assert found.keys() == before.keys()
    assert len(list(out.glob("*.safetensors"))) > 1
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-6)
    changed = {name for name in found if not found[name].equal(before[name])}
    trained = {
        name for name in load_file(adapter / "adapter_model.safetensors") if ".lora_B" in name or name.endswith("bias")
    }
    assert len(changed) == len(trained)


def test_a_base_in_sixteen_bits_is_rounded_once(tmp_path, tiny):
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16).save_pretrained(base)
    adapter = write_adapter(base, tmp_path / "adapter", r=4, target_modules="all-linear")
    for kind, dtype in ((None, torch.bfloat16), ("F32", torch.float32), ("F16", torch.float16)):
        out = tmp_path / f"out-{kind}"
        out.mkdir()
        merge(base, read_adapter(adapter), out, kind, silent)
        found = weights_of(out)
        assert {tensor.dtype for tensor in found.values()} == {dtype}
        name = "model.layers.1.mlp.up_proj.weight"
        parts = load_file(adapter / "adapter_model.safetensors")
        a, b = (parts[f"base_model.model.{name.replace('.weight', '')}.lora_{part}.weight"] for part in "AB")
        exact = weights_of(base)[name].float() + 8 / 4 * b @ a
        assert (found[name].float() - exact.to(dtype).float()).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
        # Nearly all are the nearest number that the type has.
        assert (found[name] == exact.to(dtype)).float().mean() > 0.999


def logits_as_trained(base, adapter, ids):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    return model(ids).logits


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "lm_head"]},
    ],
    ids=["embeddings", "its own head", "the head"],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@torch.no_grad()
def test_tied_embeddings_are_untied_if_only_one_use_was_trained(tmp_path, tiny, lora):
    from transformers import AutoModelForCausalLM

    adapter = write_adapter(tiny, tmp_path / "adapter", r=4, **lora)
    out = tmp_path / "out"
    out.mkdir()
    assert merge(tiny, read_adapter(adapter), out, None, silent).untied
    write_config(tiny, out, None, True)
    ids = torch.arange(5, 60)[None]
    found = AutoModelForCausalLM.from_pretrained(out).eval()
    expected = logits_as_trained(tiny, adapter, ids)
    torch.testing.assert_close(found(ids).logits, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_layers_with_transposed_weights_merge_correctly(tmp_path):
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    base = tmp_path / "base"
    GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=24, n_layer=2, n_head=2)).save_pretrained(base)
    targets = ["c_attn", "c_proj", "c_fc"]
    with pytest.warns(UserWarning, match="fan_in_fan_out"):
        adapter = write_adapter(base, tmp_path / "adapter", r=4, target_modules=targets)
    out = tmp_path / "out"
    out.mkdir()
    merge(base, read_adapter(adapter), out, None, silent)
    write_config(base, out, None, False)
    ids = torch.arange(5, 60)[None]
    found = AutoModelForCausalLM.from_pretrained(out).eval()
    torch.testing.assert_close(found(ids).logits, logits_as_trained(base, adapter, ids), atol=1e-4, rtol=1e-4)


def without(name):
    def change(tensors, _config):
        del tensors[name]

    return change


def replaced(name, make):
    def change(tensors, _config):
        tensors[name] = make(tensors[name])

    return change


def configured(**values):
    def change(_tensors, config):
        config.update(values)

    return change


Q = "base_model.model.model.layers.1.self_attn.q_proj"
BROKEN = {
    "half of a pair": (without(f"{Q}.lora_B.weight"), "not a pair of A and B: lora_B"),
    "a layer less": (
        lambda tensors, _: [tensors.pop(f"{Q}.lora_{part}.weight") for part in "AB"],
        "nothing for model.layers.1.self_attn.q_proj",
    ),
    "inputs": (
        replaced(f"{Q}.lora_A.weight", lambda t: t[:, :-1].contiguous()),
        r"is \[64, 63\]; the base's is \[64, 64\]",
    ),
    "outputs": (
        replaced(f"{Q}.lora_B.weight", lambda t: torch.cat([t, t])),
        r"is \[128, 64\]; the base's is \[64, 64\]",
    ),
    "another rank": (replaced(f"{Q}.lora_A.weight", lambda t: torch.cat([t, t])), "do not fit each other"),
    "a rank not told": (configured(r=5), "has rank 4; adapter_config.json says 5"),
    "NaN": (replaced(f"{Q}.lora_A.weight", lambda t: t.index_fill(0, torch.tensor([1]), float("nan"))), "not numbers"),
    "endless": (replaced(f"{Q}.lora_B.weight", lambda t: t / 0), "not numbers"),
    "too large a scale": (configured(lora_alpha=1e45), "not numbers"),
    "no scale": (configured(lora_alpha=None), "lora_alpha of model"),
    "dora": (configured(use_dora=True), "use_dora.*merge: false"),
    "another start": (configured(init_lora_weights="pissa_niter_4"), "pissa"),
    "another method": (configured(peft_type="IA3"), "Only LoRA"),
    "another base": (
        lambda tensors, _: tensors.update({Q.replace("layers.1", "layers.9") + ".lora_A.weight": torch.zeros(4, 64)}),
        "not a pair",
    ),
    "a strange tensor": (
        lambda tensors, _: tensors.update({f"{Q}.lora_magnitude_vector.weight": torch.zeros(64)}),
        "not one that can be merged",
    ),
    "a foreign tensor": (
        lambda tensors, _: tensors.update({"something.else": torch.zeros(64)}),
        "no weight of the base",
    ),
    "an unknown tensor": (
        lambda tensors, _: tensors.update({"base_model.model.vision.weight": torch.zeros(64)}),
        "which the base does not have",
    ),
    "nothing": (lambda tensors, _: tensors.clear(), "no tensors"),
}


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    return write_adapter(tiny, tmp_path_factory.mktemp("plain"), r=4, target_modules=["q_proj"])


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_adapter_is_refused_with_the_reason(tmp_path, tiny, plain, case):
    change, why = BROKEN[case]
    folder = tmp_path / "adapter"
    shutil.copytree(plain, folder)
    tensors, config = (
        load_file(folder / "adapter_model.safetensors"),
        json.loads((folder / "adapter_config.json").read_text()),
    )
    change(tensors, config)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(JobError, match=why) as raised:
        merge(tiny, read_adapter(folder), out, None, silent)
    assert raised.value.code == "adapter_invalid"


def test_a_truncated_file_is_refused(tmp_path, tiny, plain):
    folder = tmp_path / "adapter"
    shutil.copytree(plain, folder)
    whole = (folder / "adapter_model.safetensors").read_bytes()
    for cut in (0, 4, 100, len(whole) - 1):
        (folder / "adapter_model.safetensors").write_bytes(whole[:cut])
        with pytest.raises(JobError, match="cannot be read as safetensors"):
            read_adapter(folder)


def test_weights_too_large_for_half_precision_are_an_error(tmp_path, tiny):
    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"] *= 1e9
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    (tmp_path / "out").mkdir()
    with pytest.raises(JobError, match=r"up_proj.weight has weights too large for F16. Take bf16"):
        merge(base, None, tmp_path / "out", "F16", silent)
