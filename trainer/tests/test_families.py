"""Packs of every family of models: their losses and gradients are those of their rows alone."""

import json
from pathlib import Path

import pytest
import torch

from tests.families import packing
from tests.families.checkpoints import FAMILIES, QUANTIZED, write
from trainer.model import kernels, position_mixers, quantized
from trainer.model.load import load_base
from trainer.model.position_mixers import keeps_apart
from trainer.run import memory
from trainer.run.evaluate import generate_answers
from trainer.run.loop import limits_of
from trainer.runtime.spec import Base, ModelSpec

# A delta rule, a short convolution, Mamba2, sinks, chunks, and keys that layers share. The others, as Mamba2 with
# experts beside it and values of another size than keys, run in `npm run test:full`.
QUICK = ("qwen3_5_text", "lfm2", "granite_h", "gpt_oss", "llama4", "gemma4_e2b")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Writes the tiny checkpoint of a family, once."""
    folder, written = tmp_path_factory.mktemp("families"), set()

    def make(name: str):
        if name not in written:
            write(name, folder / name)
            written.add(name)
        return folder / name

    return make


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in FAMILIES]
)
def test_rows_of_a_pack_train_as_they_do_alone(checkpoint, name):
    assert packing.packing_cell(checkpoint(name)) == "yes"


@pytest.mark.parametrize("name", QUICK)
def test_rounding_to_half_precision_is_no_leak(checkpoint, name):
    assert keeps_apart(packing.load(checkpoint(name), torch.bfloat16))


def test_llama_4_scales_no_query_by_its_place_in_a_pack(checkpoint):
    config = packing.load(checkpoint("llama4")).config
    assert config.attn_temperature_tuning
    assert limits_of(config, None, packing.CPU).tokens < config.floor_scale


def apart(model) -> bool:
    """Whether a part of a model computes documents as rows of a batch."""
    return any(isinstance(part, position_mixers.Apart) for part in model.modules())


@pytest.mark.skipif(not kernels.scans_available(packing.CPU), reason="no kernels for this CPU, or no compiler")
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "granite_h", "nemotron_h"])
def test_hybrids_keep_documents_apart_in_one_pass(checkpoint, name):
    assert not apart(packing.load(checkpoint(name)))


@pytest.mark.parametrize(
    "name", ["granite_h", *(pytest.param(name, marks=pytest.mark.full) for name in ("qwen3_5_text", "lfm2"))]
)
def test_without_kernels_each_document_is_a_row(checkpoint, monkeypatch, name):
    monkeypatch.setattr(kernels, "scans_available", lambda _: False)
    assert apart(packing.load(checkpoint(name)))
    assert packing.packing_cell(checkpoint(name)) == "yes"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("granite_h", True, id="granite_h-kernels"),
        pytest.param("nemotron_h", False, id="nemotron_h-plain"),
        pytest.param("granite_h", False, id="granite_h-plain", marks=pytest.mark.full),
        pytest.param("nemotron_h", True, id="nemotron_h-kernels", marks=pytest.mark.full),
    ],
)
def test_states_stay_finite_at_a_high_rate(checkpoint, monkeypatch, name, own):
    """Also with memory that is full of NaN before it is written, in all weights, decays and steps of time included."""
    if not own:
        monkeypatch.setattr(kernels, "scans_available", lambda _: False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    model = packing.load(checkpoint(name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for _ in range(4):
            loss, gradients = packing.packed(model, packing.rows())
            assert all(bool(each.isfinite().all()) for each in (loss, *gradients.values()))
            for weight_name, weight in model.named_parameters():
                weight.grad = gradients.get(weight_name)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_base_whose_documents_mix_gets_one_row_a_pass(checkpoint, monkeypatch):
    folder = checkpoint("lfm2")
    monkeypatch.setattr(position_mixers, "_compute_with_kernels", lambda *_: None)
    monkeypatch.setattr(position_mixers, "_separate", lambda *_: None)
    assert packing.packing_cell(folder) == "one row a pass (documents mix)"


@pytest.mark.parametrize("name", ["lfm2", "gpt_oss"])
def test_one_row_a_pass_is_computed_with_the_attention_of_transformers(checkpoint, monkeypatch, name):
    def fail(_) -> bool:
        raise TypeError("an argument that nobody knows")

    monkeypatch.setattr(position_mixers.Check, "is_apart", fail)
    model = packing.load(checkpoint(name))
    assert not keeps_apart(model)
    for sequence in packing.rows():
        loss, _ = packing.packed(model, [sequence])
        expected, _ = packing.alone(model, [sequence])
        torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("apart", [True, False])
def test_answers_that_are_made_together_are_those_made_alone(checkpoint, monkeypatch, apart):
    from transformers import AutoTokenizer

    folder = checkpoint("qwen3_5_text")
    if not apart:
        monkeypatch.setattr(position_mixers.Check, "is_apart", lambda _: False)
    model, tokenizer = packing.load(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.parse_control_tokens = False
    prompts = [[{"role": "user", "content": text}] for text in ("one", "another one, which is longer", "three")]

    def answers(group):
        return generate_answers(model, tokenizer, group, 6, 256, packing.CPU)

    assert answers(prompts) == [answers([prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["gemma4_moe", "llama4", "deepseek_v3"])
def test_all_weights_of_a_mixture_count_for_its_memory(checkpoint, name):
    """Sizes of heads that differ between layers, a decoder with the head in it, and dense layers before experts."""
    model = packing.load(checkpoint(name))
    shape = memory.shape_of(model.config)
    experts = sum(weight.numel() for weight in model.get_decoder().parameters() if weight.ndim == 3)
    # A model that also sees has its tower beside them.
    assert shape.weights + shape.vision_weights == sum(weight.numel() for weight in model.parameters())
    assert shape.expert_weights == experts > 0


def test_layers_shorter_than_a_block_of_quantized_weights_stay_as_they_are(checkpoint):
    spec = ModelSpec(
        job_id="job",
        base=Base("family", str(checkpoint("gemma3n"))),
        method="qlora",
        lora=None,
        start=None,
        threads=1,
        converters="",
    )
    model = load_base(spec, packing.CPU, torch.bfloat16)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    plain = {name.rpartition(".")[2] for name, layer in layers.items() if not quantized.is_quantized(layer)}
    # AltUp changes its weights as it trains.
    assert {"correction_coefs", "prediction_coefs"} <= plain and "q_proj" not in plain


def test_the_table_has_a_row_of_each_family_that_is_tried():
    table = json.loads((Path(__file__).parents[2] / "docs/reference/families.json").read_text())
    assert list(table) == [*FAMILIES, *QUANTIZED]
