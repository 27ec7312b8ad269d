"""The converters are given what is in a checkpoint, and not what its configuration alone says."""

import copy
import errno
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.families import vocabularies
from tests.families.checkpoints import write
from trainer.cli.prepare_base import context_length, read_config
from trainer.export.stage import STAGES
from trainer.run import artifact
from trainer.runtime.converters import LayerKind, packages, suited
from trainer.runtime.errors import JobError, converting, doing, passes, reason
from trainer.runtime.spec import Base, ModelSpec
from trainer.tests.exporting import write_spec

CONVERTERS = Path(__file__).parents[2] / ".local/llama/source"


@pytest.mark.parametrize(("name", "kept"), [("qwen3_5_text", False), ("glm4_moe", True)])
def test_layers_that_predict_are_converted_where_their_weights_are(tmp_path, name, kept):
    write(name, tmp_path)
    with packages(CONVERTERS):
        base = import_module("conversion").ModelBase
        with suited(tmp_path):
            fields = base.load_hparams(tmp_path, False)
            counts = [fields[key] for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers") if key in fields]
            assert (counts, base.no_mtp) == ([int(kept)], not kept)
        assert not base.no_mtp


def test_rules_that_read_the_file_themselves_find_layers_under_their_former_names(tmp_path):
    write("granite_h", tmp_path)
    with packages(CONVERTERS):
        conversion = import_module("conversion")
        import gguf

        with suited(tmp_path):
            kind = conversion.get_model_class("GraniteMoeHybridForCausalLM")
            model = kind(tmp_path, gguf.LlamaFileType.ALL_F32, tmp_path / "none.gguf", eager=True)
    assert (model._attn_layers, model._ssm_layers) == ([1], [0])


def test_texts_begin_in_the_engine_as_the_tokenizer_begins_them(tmp_path):
    vocabularies.write(tmp_path, "phi-3", "microsoft-Phi-3.5-mini-instruct")
    (tmp_path / "config.json").write_text("{}")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    with packages(CONVERTERS):
        gguf = import_module("conversion.base").gguf
        without = gguf.SpecialVocab(tmp_path).add_special_token
        with suited(tmp_path):
            found = gguf.SpecialVocab(tmp_path)
    # Without the field the library begins each text with it.
    assert "bos_token" in config and (without, found.add_special_token) == ({}, {"bos": False})


def test_the_projectors_of_pixtral_get_the_token_that_ends_a_row(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    embeddings, head = [(f"language_model.{name}.weight", None) for name in ("model.embed_tokens", "lm_head")]
    with packages(CONVERTERS):
        conversion = import_module("conversion")
        pixtral, other = (
            conversion.get_model_class(name, mmproj=True)
            for name in ("Mistral3ForConditionalGeneration", "Qwen3VLForConditionalGeneration")
        )
        with suited(tmp_path):
            assert pixtral.filter_tensors(embeddings) == embeddings
            assert pixtral.filter_tensors(head) is None and other.filter_tensors(embeddings) is None
        assert pixtral.filter_tensors(embeddings) is None


def fail(*_: object) -> None:
    raise KeyError("position_ids")


@pytest.mark.parametrize("name", ["huggingface", "gguf", "onnx"])
def test_whatever_an_exporter_raises_is_a_sentence(tiny, tmp_path, monkeypatch, name):
    spec = write_spec(tmp_path / "export", tiny, tiny, format=name)
    monkeypatch.setattr("trainer.export.output.write_output", fail)
    others = " or ".join(other for other in ("huggingface", "gguf", "onnx") if other != name)
    with pytest.raises(JobError) as told:
        STAGES["make"](spec, tmp_path, fail)
    assert str(told.value) == (
        f"The model cannot be exported as {name} ('position_ids' is missing or unknown). Export it as {others}."
    )


@pytest.mark.parametrize("method", ["lora", "full"])
def test_whatever_a_converter_raises_after_a_training_is_a_sentence(tmp_path, monkeypatch, method):
    for converter in ("convert_adapter", "convert_model"):
        monkeypatch.setattr(artifact, converter, fail)
    spec = ModelSpec(
        job_id="job", base=Base("test/tiny", ""), method=method, lora=None, start=None, threads=1, converters=""
    )
    with pytest.raises(JobError, match=r"^The \w+ cannot be converted for the engine \('position_ids' is .*\)\. Take "):
        artifact.convert(None, spec, tmp_path)


def test_what_is_for_users_stays_as_it_is():
    told = JobError("adapter_invalid", "The adapter has no adapter_config.json.")
    for problem in (told, MemoryError()):
        with pytest.raises(type(problem)) as raised, converting("It fails", "Leave it."):
            raise problem
        assert raised.value is problem
    assert reason(told) == str(told)


def test_a_failure_while_a_base_is_added_says_what_was_done_and_what_to_do(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "banana"}')
    with pytest.raises(JobError) as raised:
        context_length(read_config(tmp_path))
    told = reason(raised.value)
    assert re.fullmatch(
        r"Reading .*config\.json\) failed \('banana' is missing or unknown\)\. Compare its files.*", told
    )
    with pytest.raises(RuntimeError, match=r"^It has a reason$"), doing("Reading it"):
        raise RuntimeError("It has a reason")
    with pytest.raises(RuntimeError) as wrapped:
        raise RuntimeError("The engine cannot read it") from OSError(errno.ENOSPC, "No space left on device")
    assert reason(wrapped.value).startswith("The disk is full") and passes(wrapped.value)
    assert not passes(raised.value)


def test_a_kind_of_layer_has_both_names():
    kind = LayerKind("linear_attention", "mamba")
    for same in (kind, copy.deepcopy(kind)):
        assert same == "mamba" and same == "linear_attention" and same != "conv"
        assert same in ("mamba",) and same in {"linear_attention"}
