"""The converters are given what is in a checkpoint, and not what its configuration alone says."""

import copy
import errno
import json
import re
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.families import vocabularies
from tests.families.checkpoints import write
from trainer.cli.prepare_base import context_length, convert, read_config
from trainer.export.stage import STAGES
from trainer.model.adapter_gguf import open_base
from trainer.run import artifact
from trainer.run.engine import Engine
from trainer.runtime.converters import LayerKind, packages, suited
from trainer.runtime.errors import JobError, converting, doing, passes, reason
from trainer.runtime.spec import Base, ModelSpec
from trainer.tests.conftest import CONVERTERS, ROOT
from trainer.tests.exporting import write_spec
from trainer.tests.make_tiny import SMALL_VOCABULARY, make_tiny

NODE = ROOT / "scripts/node"


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


def test_a_program_in_a_checkpoint_is_not_run(tmp_path):
    """Converters of some families, such as GLM-4's, ask transformers to run the tokenizer's own if there is one."""
    ran = tmp_path / "ran"
    vocabularies.write(tmp_path, None, None, size=SMALL_VOCABULARY)
    (tmp_path / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast): pass\n"
    )
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["own.Own", "own.Own"]}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    before = vars(AutoTokenizer)["from_pretrained"]
    with packages(CONVERTERS):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    assert tokenizer("a").input_ids and not ran.exists()
    assert vars(AutoTokenizer)["from_pretrained"] is before


def test_answers_end_in_the_engine_where_the_template_and_transformers_end_them(known_tokens, tmp_path):
    """At tokens that the library does not know by their text, and that the checkpoint calls ordinary ones. A name of
    the model by which the library treats vocabularies otherwise is none of a file that has another vocabulary.
    """
    hf = tmp_path / "hf"
    make_tiny(hf, vocab_size=SMALL_VOCABULARY)
    content = json.loads((hf / "tokenizer.json").read_text())
    turn, stop = [token["id"] for token in content["added_tokens"]][-2:]
    for number, name, special in ((turn, "</turn>", False), (stop, "<stop>", True)):
        (token,) = (token for token in content["added_tokens"] if token["id"] == number)
        content["model"]["vocab"][name] = content["model"]["vocab"].pop(token["content"])
        token |= {"content": name, "special": special}
    (hf / "tokenizer.json").write_text(json.dumps(content))
    template = hf / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", "</turn>"))
    end = AutoTokenizer.from_pretrained(hf).eos_token_id
    (hf / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, stop]}))
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, "_name_or_path": "acme/Not-Phi-3"}))
    convert(tmp_path, CONVERTERS)
    with packages(CONVERTERS):
        import gguf

        fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    ends = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("eos", "eot", "eom")]
    assert ends == [end, turn, stop]
    assert fields["tokenizer.ggml.token_type"].contents(turn) == gguf.TokenType.CONTROL
    assert "phi-3" not in fields["general.name"].contents().lower()
    Engine(NODE).load(tmp_path / "model.gguf")


def test_stacked_experts_are_read_as_published_and_as_transformers_saves_them(tmp_path):
    write("qwen3_vl_moe", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    with packages(CONVERTERS):
        conversion = import_module("conversion")
        model = open_base(conversion, tmp_path, tmp_path / "none.gguf")
        for name, weight in stored.items():
            if ".mlp.experts." in name:
                short = model.filter_tensors((name, None))[0]
                published, saved = (dict(model.modify_tensors(each, short, 0)) for each in (weight, weight.mT))
                assert published.keys() == saved.keys() and len(published) == (2 if "gate_up" in name else 1)
                for target, made in published.items():
                    assert torch.equal(made, saved[target])
                    assert made.shape == ((4, 64, 96) if "down" in target else (4, 96, 64))


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


@pytest.mark.parametrize("length", [0, -5, 512.5, "2048", True, None, float("nan")])
def test_a_context_that_is_no_count_of_tokens_is_refused(length):
    with pytest.raises(RuntimeError, match=r"^max_position_embeddings .* must be a whole number above 0 .*, and is"):
        context_length({"max_position_embeddings": length})
