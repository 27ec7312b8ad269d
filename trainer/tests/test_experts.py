"""Adapters of a mixture's experts: what they compute, and what PEFT and the engine read of them."""

import json
import shutil
import sys
from functools import cache

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from trainer.cli.import_adapter import import_adapter
from trainer.cli.merge import merge as merge_files
from trainer.model import experts, targets
from trainer.model.adapter_changes import read_adapter
from trainer.model.adapter_file import read_pairs
from trainer.model.adapter_gguf import library, open_base, write_adapter_gguf
from trainer.model.load import load_base, trainable, with_adapter
from trainer.model.merge import merge
from trainer.model.skeleton import Skeleton
from trainer.run import foreign_adapter
from trainer.runtime.files import sha256_of
from trainer.runtime.hyperparameters import Lora
from trainer.runtime.spec import Base, ModelSpec, read_import_spec
from trainer.tests.conftest import CONVERTERS, ROOT, Recorder
from trainer.tests.make_tiny import SMALL_VOCABULARY

sys.path.insert(0, str(ROOT / "tests/families"))
import checkpoints

# An expert a tensor in the files; transposed and interleaved; without a gate; under other names, beside shared experts.
FAMILIES = ("qwen3_moe", "gpt_oss", "nemotron_h", pytest.param("glm4_moe", marks=pytest.mark.full))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """The checkpoint of a family."""
    folder = tmp_path_factory.mktemp(request.param)
    checkpoints.write(request.param, folder)
    return folder


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@cache
def linear_modules(folder):
    return targets.targets_of(folder, CONVERTERS)["linear_modules"]


def adapted(folder, parameters=None, **options):
    """The model with a random adapter of its dense layers and experts, or of these `parameters`."""
    base = load(folder)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=linear_modules(folder),
        target_parameters=parameters or experts.target_parameters(base),
        **options,
    )
    torch.manual_seed(0)
    with experts.named_as_given():
        model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def test_a_base_that_also_reads_pictures_has_adapters_in_its_language_model_alone(tmp_path):
    checkpoints.write("mistral4", tmp_path)
    layers = targets.targets_of(tmp_path, CONVERTERS)["linear_modules"]
    lora = Lora(r=4, alpha=8, target_modules=layers, experts=True)
    spec = ModelSpec(
        job_id="", base=Base("", str(tmp_path)), method="lora", lora=lora, start=None, threads=1, converters=""
    )
    base = load_base(spec, torch.device("cpu"), torch.float32)
    names = [name for name in trainable(with_adapter(base, spec)) if "lora_A" in name]
    assert all(".language_model." in name for name in names)
    # o_proj, and of experts and shared experts two and three, in two layers.
    assert len(names) == 2 * (1 + 2 + 3)


IDS = torch.randint(100, SMALL_VOCABULARY, (1, 24), generator=torch.Generator().manual_seed(0))


def logits(model):
    return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("way", ["compute", "compute_grouped"])
def test_experts_compute_what_peft_computes_with_its_gradients(folder, monkeypatch, way):
    if way == "compute_grouped":
        monkeypatch.setattr(experts.Experts, "forward", experts.Experts.compute_grouped)

    def computed(replaced):
        model = adapted(folder)
        assert not replaced or experts.install(model) > 0
        result = logits(model)
        result.square().mean().backward()
        return result, {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}

    (expected, gradients), (result, own) = computed(False), computed(True)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    assert any(".experts." in name for name in own)
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[name], gradient, atol=1e-6, rtol=1e-3, msg=name)


def test_peft_reads_back_what_was_trained_and_no_router(folder, tmp_path):
    model = adapted(folder)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    experts.describe_to_peft(model, tmp_path)
    read = PeftModel.from_pretrained(load(folder), tmp_path)
    names = [{name for name, _ in each.named_parameters() if ".lora_" in name} for each in (model, read)]
    assert names[0] == names[1]
    assert not any(".gate." in name or ".router." in name for name in names[0])
    torch.testing.assert_close(logits(read), logits(model), atol=1e-5, rtol=1e-4)


# As trained here; of one weight alone, with PEFT's further options.
FOREIGN = {
    "ours": ({}, None),
    "some experts": ({"use_rslora": True, "rank_pattern": {"down_proj": 2}}, ["experts.down_proj"]),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_adapter_of_experts_is_imported_as_what_peft_reads(known_tokens, folder, tmp_path, kind):
    options, parameters = FOREIGN[kind]
    model = adapted(folder, parameters, **options)
    given = tmp_path / "given"
    model.save_pretrained(given, save_embedding_layers=False)
    experts.describe_to_peft(model, given)
    spec = {
        "base": {"id": "test/tiny", "path": str(folder)},
        "start": {"path": str(given), "sha256": sha256_of(given / foreign_adapter.WEIGHTS)},
        "lora": {"r": 4, "alpha": 8, "target_modules": []},
        "linear_modules": linear_modules(folder),
        "experts": True,
        "threads": 1,
        "converters": str(CONVERTERS),
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    protocol = Recorder()
    # It compares what it writes with PEFT's reading.
    assert import_adapter(read_import_spec(tmp_path), tmp_path, protocol)
    (result,) = protocol.of("result")
    assert result["kind"] == "adapter"
    read = PeftModel.from_pretrained(load(folder), result["folder"])
    torch.testing.assert_close(logits(read), logits(model), atol=1e-4, rtol=1e-3)
    if kind == "ours":
        # An engine that takes no adapters of experts gets whole weights.
        reading = foreign_adapter.read(load(folder), given)
        assert reading.pairs(linear_modules(folder)) is None
        torch.testing.assert_close(logits(foreign_adapter.merge(reading)), logits(model), atol=1e-4, rtol=1e-3)


def test_peft_reads_modules_whose_names_its_rules_for_checkpoints_would_change(tmp_path):
    """Laguna's shared experts: PEFT leaves out of the model what it does not find there."""
    base, written, exported = (tmp_path / name for name in ("base", "written", "exported"))
    checkpoints.write("laguna", base)
    model = adapted(base)
    model.save_pretrained(written, save_embedding_layers=False)
    experts.describe_to_peft(model, written)
    expected = logits(model)
    with experts.named_as_written():
        torch.testing.assert_close(logits(PeftModel.from_pretrained(load(base), written)), expected)
    shutil.copytree(written, exported)
    file = "adapter_model.safetensors"
    assert experts.write_for_peft(written / file, Skeleton(base), exported / file)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(load(base), exported)), expected)


# The engine's file has one alpha and divides it by each tensor's rank.
SCALES = {
    "use_rslora": True,
    "rank_pattern": {"experts.down_proj": 2},
    "alpha_pattern": {r".*\.experts\.down_proj": 5, "o_proj": 3},
}


def test_the_file_changes_the_engines_experts_as_the_adapter_does_the_checkpoints(folder, tmp_path):
    model = adapted(folder, **SCALES)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    experts.describe_to_peft(model, tmp_path)
    file = tmp_path / "adapter.gguf"
    write_adapter_gguf(CONVERTERS, folder, tmp_path, file, "f32")
    skeleton = Skeleton(folder)
    _, pairs = read_pairs(tmp_path, skeleton.model)
    merged, base = model.merge_and_unload(), load(folder)
    with library(CONVERTERS) as conversion, torch.no_grad():
        import gguf

        rules = open_base(conversion, folder, folder / "none.gguf")
        expected = {}
        for name in pairs:
            change = merged.get_parameter(name) - base.get_parameter(name)
            for stored, part in skeleton.as_stored(name, change).items():
                converted, _ = rules.filter_tensors((stored, lambda: None))
                block = next(int(each) for each in converted.split(".") if each.isdecimal())
                expected |= dict(rules.modify_tensors(part, converted, block))
        reader = gguf.GGUFReader(file)
        tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
        alpha = reader.fields["adapter.lora.alpha"].contents()
    assert len(tensors) == 2 * len(expected)
    assert any("_exps." in name for name in expected)
    for name, change in expected.items():
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        torch.testing.assert_close(alpha / b.shape[-1] * b @ a, change, atol=1e-5, rtol=1e-4, msg=name)


def test_a_merged_export_computes_what_the_adapter_does(folder, tmp_path):
    model = adapted(folder)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    experts.describe_to_peft(model, tmp_path / "adapter")
    out = tmp_path / "merged"
    out.mkdir()
    merge(folder, read_adapter(tmp_path / "adapter", folder), out, "F32", lambda share: None)
    shutil.copyfile(folder / "config.json", out / "config.json")
    torch.testing.assert_close(logits(load(out)), logits(model), atol=1e-4, rtol=1e-3)


def test_experts_are_merged_in_the_engines_file_with_what_their_outputs_are_multiplied_by(tmp_path):
    import gguf

    random = np.random.default_rng(0)
    weights, scale = random.normal(size=(3, 8, 32)).astype(np.float32), np.array([0.5, 2, 1], np.float32)
    a, b = random.normal(size=(3, 4, 32)).astype(np.float32), random.normal(size=(3, 8, 4)).astype(np.float32)
    name = "blk.0.ffn_down_exps"
    files = {
        "base": {f"{name}.weight": weights, f"{name}.scale": scale},
        "adapter": {f"{name}.weight.lora_a": a, f"{name}.weight.lora_b": b},
    }
    for file, tensors in files.items():
        writer = gguf.GGUFWriter(tmp_path / file, "gemma4")
        if file == "adapter":
            writer.add_string("adapter.type", "lora")
            writer.add_float32("adapter.lora.alpha", 8)
        for tensor, data in tensors.items():
            writer.add_tensor(tensor, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    merge_files(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")
    merged = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "merged").tensors}
    expected = scale[:, None, None] * weights + 2 * b @ a
    np.testing.assert_allclose(scale[:, None, None] * merged[f"{name}.weight"], expected, rtol=1e-5, atol=1e-5)
