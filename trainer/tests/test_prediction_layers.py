"""Layers that predict a further token stay with a model: trained in full, merged, exported, and in the engine."""

import json

import pytest
import torch

from tests.families.checkpoints import write
from trainer.data.tokenizer import Tokenizer
from trainer.model import load
from trainer.model.adapter_changes import read_adapter
from trainer.model.merge import merge
from trainer.model.tensors import read_checkpoint
from trainer.run import base_check
from trainer.run.artifact import FOLDERS, save, save_merged, write_folder
from trainer.runtime.converters import PREDICTION_LAYERS, prediction_tensors
from trainer.runtime.gguf_reader import GgufReader
from trainer.runtime.hyperparameters import Lora
from trainer.runtime.spec import Base, ModelSpec
from trainer.tests.make_tiny import SMALL_VOCABULARY
from trainer.tests.test_base_check import CONVERTERS, ENGINE


def counts(folder):
    config = json.loads((folder / "config.json").read_text())
    parts = (config, config.get("text_config", {}))
    return [(name, part[name]) for part in parts for name in PREDICTION_LAYERS if name in part]


def require_kept(base, folder):
    names = list(prediction_tensors(base))
    assert names
    original, kept = read_checkpoint(base), read_checkpoint(folder)
    assert all(torch.equal(original[name].whole(), kept[name].whole()) for name in names)
    assert counts(folder) == counts(base)
    # Transformers reads the model, and passes over these layers.
    assert base_check.load(folder)


def loaded(base, method) -> tuple[ModelSpec, load.Model, Tokenizer]:
    lora = None if method == "full" else Lora(r=4, alpha=8, target_modules=["o_proj"])
    spec = ModelSpec(
        job_id="", base=Base("", str(base)), method=method, lora=lora, start=None, threads=1, converters=str(CONVERTERS)
    )
    model = load.load_base(spec, torch.device("cpu"), torch.float32)
    return spec, model if method == "full" else load.with_adapter(model, spec), load.load_tokenizer(spec)


@pytest.mark.parametrize(
    "name",
    [
        "glm4_moe_lite",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("qwen3_5", "qwen3_next", "glm4_moe")),
    ],
)
def test_a_model_that_was_trained_in_full_keeps_them(known_tokens, tmp_path, name):
    base = tmp_path / "base"
    write(name, base, as_served=True, tokens=SMALL_VOCABULARY)
    spec, model, tokenizer = loaded(base, "full")
    artifact = save(model, tokenizer, spec, tmp_path / "out")
    require_kept(base, artifact.folder)
    # The engine has the layer too, and computes the others as before.
    rows = base_check.random_rows(base)
    expected = base_check.log_probabilities(base_check.load(base), rows)
    assert (ENGINE.score(artifact.gguf, rows)["base"] - expected).abs().mean() < 0.1
    assert layers_in(artifact.gguf) == len(layers_of(base)) + 1


def layers_of(folder) -> list[int]:
    config = json.loads((folder / "config.json").read_text())
    return list(range(config.get("text_config", config)["num_hidden_layers"]))


def layers_in(gguf_file) -> int:
    return len({tensor.name.split(".")[1] for tensor in GgufReader(gguf_file).tensors if "blk." in tensor.name})


def test_merged_adapters_keep_them(tmp_path):
    base = tmp_path / "base"
    write("glm4_moe_lite", base)
    _, model, _ = loaded(base, "lora")
    save_merged(model, base, tmp_path / "merged")
    require_kept(base, tmp_path / "merged")
    # As an export does.
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    (tmp_path / "exported").mkdir()
    merge(base, read_adapter(tmp_path / "adapter", base), tmp_path / "exported", "F32", lambda _: None)
    kept = read_checkpoint(tmp_path / "exported")
    assert all(name in kept for name in prediction_tensors(base))


def test_a_checkpoint_of_several_files_gets_one_more(tmp_path):
    base = tmp_path / "base"
    write("glm4_moe_lite", base)
    spec, model, _ = loaded(base, "full")
    save_as_usual = model.save_pretrained
    model.save_pretrained = lambda folder: save_as_usual(folder, max_shard_size="100KB")
    from trainer.run.artifact import write_folder

    write_folder(model, load.load_tokenizer(spec), spec, tmp_path / "out")
    require_kept(base, tmp_path / "out/hf")
    assert len(list((tmp_path / "out/hf").glob("*.safetensors"))) > 2


def test_a_model_that_was_trained_in_full_keeps_the_weights_that_its_layers_do_not_use(tmp_path):
    base = tmp_path / "base"
    write("gemma3n", base)
    spec, model, tokenizer = loaded(base, "full")
    write_folder(model, tokenizer, spec, tmp_path / "out")
    original, kept = read_checkpoint(base), read_checkpoint(tmp_path / "out" / FOLDERS["model"])
    # The last two layers use the keys and values of earlier ones; the engine wants them nevertheless.
    assert original.keys() == kept.keys()
    name = "model.layers.5.self_attn.k_proj.weight"
    assert torch.equal(original[name].whole(), kept[name].whole())
