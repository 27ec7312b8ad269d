"""The engine computes what transformers does, without and with an adapter: of families that are built in other ways."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.families.checkpoints import write
from trainer.cli.prepare_base import PROJECTOR, check, convert_to_gguf, describe
from trainer.model.targets import targets_of
from trainer.run import base_check
from trainer.run.base_check import Engine, check_base
from trainer.runtime.gguf_reader import GgufReader
from trainer.tests.make_tiny import SMALL_VOCABULARY, make_tiny
from trainer.tests.make_tiny_vision import make_tiny_vision

CONVERTERS = Path(__file__).parents[2] / ".local/llama/source"
TARGETS = {"linear_modules": ["q_proj", "up_proj"]}
ENGINE = Engine(Path(__file__).parents[2] / "scripts/node")
# A delta rule whose configuration counts a layer that is not there, latent attention with a further layer, windows,
# experts, Mamba2 beside attention, and a wrapper that also sees.
FAMILIES = (
    *("qwen3_5_text", "glm4_moe_lite"),
    *(pytest.param(name, marks=pytest.mark.full) for name in ("gemma3", "qwen3_moe", "granite_h", "mistral3")),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_computes_what_transformers_does(prepared, name):
    base = prepared(name)
    targets = targets_of(base / "hf", CONVERTERS)
    assert targets["linear_modules"]
    assert check_base(base / "hf", base / "model.gguf", targets, CONVERTERS, ENGINE) is None


def test_other_weights_are_refused(prepared, tmp_path):
    make_tiny(tmp_path / "hf", seed=1, vocab_size=SMALL_VOCABULARY)
    with pytest.raises(RuntimeError, match="does not compute what transformers does"):
        check_base(tmp_path / "hf", prepared("tiny") / "model.gguf", TARGETS, CONVERTERS, ENGINE)


def test_layers_that_the_engine_applies_no_adapter_to_are_merged(prepared):
    """Latent attention: the engine multiplies its projections without an adapter's product."""
    base = prepared("glm4_moe_lite")
    deaf = {"linear_modules": ["q_a_proj", "kv_b_proj"]}
    assert not set(deaf["linear_modules"]) & set(targets_of(base / "hf", CONVERTERS)["linear_modules"])
    merged = check_base(base / "hf", base / "model.gguf", deaf, CONVERTERS, ENGINE)
    assert merged and set(deaf["linear_modules"]) < set(merged["linear_modules"])
    assert sorted(file.name for file in base.iterdir()) == ["hf", "model.gguf"]


def test_a_model_that_is_served_neither_unmerged_nor_merged_is_refused(prepared, monkeypatch):
    base = prepared("tiny")

    def fail(*_: object) -> None:
        raise ValueError("no rule for this tensor")

    monkeypatch.setattr(base_check, "write_adapter_gguf", fail)
    merged = check_base(base / "hf", base / "model.gguf", TARGETS, CONVERTERS, ENGINE)
    assert merged and "down_proj" in merged["linear_modules"]
    monkeypatch.setattr(base_check, "save_merged", lambda _, base, folder: shutil.copytree(base, folder))
    with pytest.raises(RuntimeError, match=r"cannot be converted: .*no rule.* Nor can it .* differs by"):
        check_base(base / "hf", base / "model.gguf", TARGETS, CONVERTERS, ENGINE)


def test_a_file_that_is_no_model_is_refused_with_the_librarys_reason(tmp_path):
    make_tiny(tmp_path / "hf", vocab_size=SMALL_VOCABULARY)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match=r"engine cannot load the converted model: its header cannot be read"):
        check_base(tmp_path / "hf", tmp_path / "model.gguf", TARGETS, CONVERTERS, ENGINE)


def test_a_missing_tokenizer_is_a_sentence(tmp_path):
    write("ernie4_5", tmp_path / "hf")
    with pytest.raises(RuntimeError, match=r"Ernie4_5.* misses a file: .*tokenizer\.model"):
        convert_to_gguf(tmp_path, CONVERTERS)


def test_a_base_whose_tower_cannot_be_converted_is_added_for_text(known_tokens, tmp_path, capsys):
    base = make_tiny_vision("smolvlm", tmp_path / "hf", vocabulary=SMALL_VOCABULARY).parent
    file = base / "hf/model.safetensors"
    tensors = {
        name.replace("vision_model.embeddings", "vision_model.eyes"): tensor for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})
    blind = convert_to_gguf(base, CONVERTERS)
    described = describe("test/eye", base, "a local folder", CONVERTERS, blind)
    assert (described["kind"], described["blind"]) == ("text", blind) and not (base / PROJECTOR).exists()
    assert blind.startswith("the engine's converter cannot read that part of ")
    assert f"It reads no pictures: {blind}." in capsys.readouterr().err


def test_a_base_whose_projector_does_not_load_is_added_for_text(known_tokens, tmp_path, capsys):
    base = make_tiny_vision("smolvlm", tmp_path / "hf", vocabulary=SMALL_VOCABULARY).parent
    convert_to_gguf(base, CONVERTERS)
    described = describe("test/eye", base, "a local folder", CONVERTERS)
    assert check(base, described, CONVERTERS, ENGINE.node) == described and described["kind"] == "vision"
    weights = GgufReader(base / PROJECTOR, "r+").tensors[0].data
    weights[:] = np.nan
    with pytest.raises(RuntimeError, match="numbers that are not finite"):
        ENGINE.read_pictures(base / described["gguf"], base / PROJECTOR)
    (base / PROJECTOR).write_bytes(b"GGUF")
    changed = check(base, described, CONVERTERS, ENGINE.node)
    assert (changed["kind"], "projector" in changed, (base / PROJECTOR).exists()) == ("text", False, False)
    assert changed["blind"].startswith("the engine cannot use its projector, as ")
    assert f"It reads no pictures: {changed['blind']}." in capsys.readouterr().err
