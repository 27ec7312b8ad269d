"""The converted adapter for the engine has the trained weights."""

import pytest
import torch
from safetensors.torch import load_file

from trainer.model.load import load_tokenizer
from trainer.run.artifact import save
from trainer.runtime.spec import read_spec


def test_the_gguf_file_holds_the_trained_weights(job, loop_of):
    folder = job(training={"epochs": 1})
    loop = loop_of(folder)
    loop.run()
    spec = read_spec(folder)
    adapter = save(loop.model, load_tokenizer(spec), spec, folder / "out")
    import gguf

    tensors = {
        tensor.name: torch.from_numpy(tensor.data.astype("float32")) for tensor in gguf.GGUFReader(adapter.gguf).tensors
    }
    trained = load_file(adapter.folder / "adapter_model.safetensors")
    assert len(tensors) == len(trained) == 2 * 7 * 2
    gate = trained["base_model.model.model.layers.1.mlp.gate_proj.lora_B.weight"]
    assert gate.abs().max() > 0
    torch.testing.assert_close(tensors["blk.1.ffn_gate.weight.lora_b"], gate, atol=1e-6, rtol=1e-3)
    assert sorted(file.name for file in adapter.folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
        "tunery.json",
    ]


def test_an_interrupted_conversion_is_repeated(job, loop_of):
    folder = job(training={"epochs": 1})
    loop = loop_of(folder)
    loop.run()
    spec = read_spec(folder)
    (folder / "out/adapter").mkdir(parents=True)
    (folder / "out/adapter.gguf").write_bytes(b"GG")
    adapter = save(loop.model, load_tokenizer(spec), spec, folder / "out")
    assert adapter.gguf.stat().st_size == pytest.approx(
        4 * sum(p.numel() for p in loop.parameters.values()) / 2, rel=0.5
    )
