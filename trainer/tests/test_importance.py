"""The importance matrix has the mean squares of the matrices' inputs, under the names of the GGUF file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainer.data.loss_mask import render
from trainer.export.gguf_file import convert
from trainer.export.importance import for_file, measure
from trainer.export.output import write_checkpoint_folder
from trainer.export.reference import load_model, load_tokenizer, reference
from trainer.export.reference_cache import has_importance
from trainer.runtime.gguf_reader import GgufReader
from trainer.tests.exporting import silent, write_adapter, write_spec

ROWS = [
    [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": word}]
    for word in ("red", "green", "blue")
]


@pytest.fixture(scope="module")
def spec(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("importance")
    adapter = write_adapter(tiny, folder / "adapter", r=4, target_modules="all-linear")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": row}) + "\n" for row in ROWS))
    importance = folder / "importance.safetensors"
    return write_spec(folder / "export", tiny, adapter, format="gguf", importance=str(importance), rows=str(rows))


@torch.inference_mode()
def inputs_of(spec, rows):
    """The mean squares of the inputs to the first layer's queries, computed by transformers."""
    model, tokenizer = load_model(spec), load_tokenizer(spec)
    found = []
    for row in rows:
        ids = tokenizer(render(row, tokenizer), add_special_tokens=False)["input_ids"]
        states = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        found.append(model.get_base_model().model.layers[0].input_layernorm(states[0])[0])
    return torch.cat(found).square().mean(0)


def test_each_matrix_has_the_mean_square_of_its_inputs(spec):
    reference(spec, silent)
    found = load_file(spec.importance)
    first = inputs_of(spec, ROWS)
    for name in ("q_proj", "k_proj", "v_proj"):
        torch.testing.assert_close(found[f"model.layers.0.self_attn.{name}.weight"], first)
    assert len(found) == 2 * 7, "seven matrices a layer, and none of the adapter's or the head's"


def test_a_damaged_importance_matrix_is_measured_again(spec):
    reference(spec, silent)
    whole = load_file(spec.importance)
    with open(spec.importance, "r+b") as file:
        file.truncate(1000)
    assert not has_importance(spec)
    reference(spec, silent)
    assert has_importance(spec) and load_file(spec.importance).keys() == whole.keys()


def test_fallback_conversations_replace_missing_rows(spec, tmp_path):
    paths = {"importance": str(tmp_path / "importance.safetensors"), "rows": str(tmp_path / "gone.jsonl")}
    gone = write_spec(tmp_path / "export", Path(spec.base.path), Path(spec.model.folder), format="gguf", **paths)
    measure(gone, load_model(gone), load_tokenizer(gone), ROWS[:1], silent)
    torch.testing.assert_close(
        load_file(gone.importance)["model.layers.0.self_attn.q_proj.weight"], inputs_of(spec, ROWS[:1])
    )


@pytest.mark.full
def test_every_matrix_of_the_converted_file_has_its_vector(spec, tmp_path):
    reference(spec, silent)
    work = tmp_path / "work"
    work.mkdir()
    write_checkpoint_folder(spec, work, "F32", False, silent)
    file = tmp_path / "model.gguf"
    convert(spec, work, file, "F32")
    for_file(Path(spec.importance), file, tmp_path / "named.safetensors")
    named, measured = load_file(tmp_path / "named.safetensors"), load_file(spec.importance)
    tensors = [
        tensor for tensor in GgufReader(file).tensors if tensor.name.startswith("blk.") and len(tensor.shape) == 2
    ]
    matrices = {tensor.name: int(tensor.shape[0]) for tensor in tensors}
    assert {name: len(values) for name, values in named.items()} == matrices
    assert torch.equal(named["blk.1.ffn_down.weight"], measured["model.layers.1.mlp.down_proj.weight"])
