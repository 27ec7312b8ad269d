"""An adapter's file for the engine changes the engine's weights as the adapter changes the checkpoint's."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from trainer.model.adapter_gguf import library, open_base, write_adapter_gguf
from trainer.runtime.errors import JobError
from trainer.tests.conftest import CONVERTERS
from trainer.tests.make_tiny import make_tiny

SMALL = {"vocab_size": 512, "head_dim": 32}
DELTA = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    # More values than keys: the library reorders the columns of out_proj.
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
    "mtp_num_hidden_layers": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 128,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
FAMILIES = {
    "rows are permuted": ("Llama", {}),
    "columns are reordered": ("Qwen3_5", DELTA),
    "a wrapper converts": ("Ministral3", {"rope_parameters": YARN}),
    "gates are joined": ("Phi3", {"head_dim": 16}),
    "short convolutions": ("Lfm2", {"head_dim": 16, "layer_types": ["conv", "full_attention"]}),
}


def adapted(folder, family, config, **lora):
    """A base and a random adapter of all its linear layers; returns the adapter's folder and its dense changes."""
    import transformers

    make_tiny(folder / "base", family=family, **{**SMALL, **config})
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **lora))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder / "adapter")
    layers = ((name, part) for name, part in model.named_modules() if hasattr(part, "get_delta_weight"))
    return folder / "adapter", {
        f"{name.removeprefix('base_model.model.')}.weight": part.get_delta_weight("default").detach()
        for name, part in layers
    }


@pytest.mark.parametrize(("family", "config"), FAMILIES.values(), ids=FAMILIES)
def test_the_file_changes_the_engines_weights_as_the_adapter_does_the_checkpoints(tmp_path, family, config):
    folder, changes = adapted(tmp_path, family, config)
    file = tmp_path / "adapter.gguf"
    write_adapter_gguf(CONVERTERS, tmp_path / "base", folder, file, "f32")
    with library(CONVERTERS) as conversion:
        import gguf

        base = open_base(conversion, tmp_path / "base", file)
        expected = {}
        for name, change in changes.items():
            converted, _ = base.filter_tensors((name, lambda: None))
            block = int(converted.split(".")[2])
            expected |= dict(base.modify_tensors(change, converted, block))
        reader = gguf.GGUFReader(file)
        tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
        alpha = reader.fields["adapter.lora.alpha"].contents()
    assert len(tensors) == 2 * len(expected) > 0
    for name, change in expected.items():
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        torch.testing.assert_close(alpha / b.shape[-1] * b @ a, change, atol=1e-5, rtol=1e-5, msg=name)


def test_a_weight_that_the_engine_does_not_have_is_named(tmp_path):
    folder, _ = adapted(tmp_path, "Llama", {})
    from safetensors.torch import load_file, save_file

    file = folder / "adapter_model.safetensors"
    tensors = {name.replace("q_proj", "new_proj"): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)
    with pytest.raises(JobError, match=r"layers\.0.self_attn\.new_proj.* cannot be served unmerged"):
        write_adapter_gguf(CONVERTERS, tmp_path / "base", folder, tmp_path / "adapter.gguf", "f32")
