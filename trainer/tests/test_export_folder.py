"""An exported folder loads in plain transformers and answers like the trainer's model; defects show in the
comparison.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from trainer.export import answering, check, reference
from trainer.export.output import write_output
from trainer.runtime.errors import JobError
from trainer.tests.exporting import silent, write_adapter, write_spec


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    return write_adapter(tiny, tmp_path_factory.mktemp("adapters") / "adapter", r=4, target_modules="all-linear")


def differences(expected_answers: dict, rows: list[dict]) -> list[float]:
    pairs = zip(expected_answers["rows"], rows, strict=True)
    return [
        abs(a - b)
        for one, other in pairs
        for a, b in zip(one["log_probabilities"], other["log_probabilities"], strict=True)
    ]


def test_the_merged_folder_answers_like_base_and_adapter(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    expected_answers = reference.reference(spec, silent)
    made = write_output(spec, tmp_path / "export", silent)
    rows = check.answers(made, None, expected_answers, silent)
    assert [row["prompt_tokens"] for row in rows] == [row["prompt_tokens"] for row in expected_answers["rows"]]
    assert [row["answer_tokens"] for row in rows] == [row["answer_tokens"] for row in expected_answers["rows"]]
    assert max(differences(expected_answers, rows)) < 1e-3
    # The base alone answers differently, so the comparison detects whether the training is in the folder.
    base = check.answers(tiny, None, expected_answers, silent)
    assert sum(differences(expected_answers, base)) / len(differences(expected_answers, base)) > 0.05


@pytest.mark.full
def test_the_folder_works_in_a_transformers_pipeline(tmp_path, tiny, adapter):
    from transformers import pipeline

    spec = write_spec(tmp_path / "export", tiny, adapter)
    expected_answers = reference.reference(spec, silent)
    made = write_output(spec, tmp_path / "export", silent)
    generate = pipeline("text-generation", str(made))
    for row in expected_answers["rows"]:
        (found,) = generate(row["messages"], max_new_tokens=64, do_sample=False)
        assert found["generated_text"][-1]["content"] == row["answer"]


@pytest.mark.full
def test_peft_loads_the_adapter_alone_which_has_its_bases_public_name(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter, merge=False)
    expected_answers = reference.reference(spec, silent)
    made = write_output(spec, tmp_path / "export", silent)
    rows = check.answers(made, tiny, expected_answers, silent)
    assert [row["answer_tokens"] for row in rows] == [row["answer_tokens"] for row in expected_answers["rows"]]
    assert max(differences(expected_answers, rows)) < 1e-3
    assert json.loads((made / "adapter_config.json").read_text())["base_model_name_or_path"] == "test/tiny"
    assert made.name == "Tickets-adapter"


def test_no_file_contains_a_local_path(tmp_path, tiny, adapter):
    for merge in (True, False):
        spec = write_spec(tmp_path / "export", tiny, adapter, merge=merge)
        made = write_output(spec, tmp_path / "export", silent)
        for file in made.iterdir():
            assert not any(
                str(place).encode() in file.read_bytes() for place in (tiny, adapter, tmp_path, Path.home())
            ), file


@pytest.mark.parametrize("quantization", [None, "bf16", "fp16", "fp32"])
def test_a_full_model_is_exported_unchanged_or_in_the_requested_type(tmp_path, tiny, quantization):
    spec = write_spec(tmp_path / "export", tiny, tiny, model={"method": "full"}, quantization=quantization)
    made = write_output(spec, tmp_path / "export", silent)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(quantization, torch.float32)
    with safe_open(made / "model.safetensors", "pt") as found, safe_open(tiny / "model.safetensors", "pt") as own:
        assert set(found.keys()) == set(own.keys())
        for name in own.keys():  # noqa: SIM118 (no dict)
            assert found.get_tensor(name).equal(own.get_tensor(name).to(dtype))
    config = json.loads((made / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == str(dtype).removeprefix("torch.")
    if quantization in (None, "fp32"):
        assert (made / "model.safetensors").samefile(tiny / "model.safetensors")


@pytest.mark.full
def test_an_export_in_sixteen_bits_answers_nearly_the_same(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter, quantization="bf16")
    expected_answers = reference.reference(spec, silent)
    rows = check.answers(write_output(spec, tmp_path / "export", silent), None, expected_answers, silent)
    found = differences(expected_answers, rows)
    assert 0 < sum(found) / len(found) < 0.05


def broken(made: Path, name: str, change) -> None:
    values = json.loads((made / name).read_text())
    change(values)
    (made / name).write_text(json.dumps(values))


def test_the_check_detects_a_broken_template(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    expected_answers = reference.reference(spec, silent)
    made = write_output(spec, tmp_path / "export", silent)
    template = (made / "chat_template.jinja").read_text()
    (made / "chat_template.jinja").write_text(template.replace("<|im_start|>assistant", "<|im_start|>asistant"))
    rows = check.answers(made, None, expected_answers, silent)
    for row, expected in zip(rows, expected_answers["rows"], strict=True):
        assert row["prompt_tokens"] != expected["prompt_tokens"]


@pytest.mark.full
def test_the_check_detects_a_broken_tokenizer_or_rotary_base(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    expected_answers = reference.reference(spec, silent)
    made = write_output(spec, tmp_path / "export", silent)
    shutil.copytree(made, tmp_path / "tokenizer")
    broken(
        tmp_path / "tokenizer",
        "tokenizer.json",
        lambda values: values.update(
            pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        ),
    )
    rows = check.answers(tmp_path / "tokenizer", None, expected_answers, silent)
    assert any(
        row["prompt_tokens"] != expected["prompt_tokens"]
        for row, expected in zip(rows, expected_answers["rows"], strict=True)
    )
    broken(
        made, "config.json", lambda values: values.update(rope_parameters={"rope_type": "default", "rope_theta": 10.0})
    )
    assert max(differences(expected_answers, check.answers(made, None, expected_answers, silent))) > 0.01


def test_older_releases_find_the_names_that_they_need(tmp_path, tiny, adapter):
    """Releases before transformers 5 assume 10,000 for a missing rotary base, and do not know the class
    `TokenizersBackend`.
    """
    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    rope = {"rope_theta": 500000.0, "rope_type": "linear", "factor": 2.0}
    broken(base, "config.json", lambda values: values.update(rope_parameters=rope, _name_or_path="/somewhere"))
    extra = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|extra|>"], "is_local": True}
    plain = tmp_path / "adapter"
    shutil.copytree(adapter, plain)
    broken(plain, "tokenizer_config.json", lambda values: values.update(extra))
    made = write_output(write_spec(tmp_path / "export", base, plain), tmp_path / "export", silent)
    config, tokenizer = (json.loads((made / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
    assert config["rope_theta"] == 500000.0
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert config["rope_parameters"] == rope
    assert "_name_or_path" not in config
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["additional_special_tokens"] == ["<|extra|>"]
    assert not {"is_local", "extra_special_tokens", "backend", "local_files_only"} & tokenizer.keys()
    assert tokenizer["chat_template"] == (made / "chat_template.jinja").read_text()
    from transformers import AutoConfig, AutoTokenizer

    assert AutoConfig.from_pretrained(made).rope_parameters == rope
    assert AutoTokenizer.from_pretrained(made).extra_special_tokens == ["<|extra|>"]


def test_the_generation_defaults_have_every_end_token(tmp_path, tiny, adapter):
    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    # As in some checkpoints: all files name the end of a document, and the template ends turns with another token.
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    broken(own, "tokenizer_config.json", lambda values: values.update(eos_token="<|endoftext|>"))
    broken(base, "config.json", lambda values: values.update(eos_token_id=0))
    broken(
        base, "generation_config.json", lambda values: values.update(eos_token_id=0, temperature=0.7, do_sample=True)
    )
    made = write_output(write_spec(tmp_path / "export", base, own), tmp_path / "export", silent)
    found = json.loads((made / "generation_config.json").read_text())
    assert found["eos_token_id"] == [0, 2]
    assert found["temperature"] == 0.7
    assert "_from_model_config" not in found


HOSTILE = "x |\n\n---\nlicense: mit\n<script>alert(1)</script> `[a](b)` \x00 # h"


def test_the_model_card_is_valid_and_escapes_names(tmp_path, tiny, adapter):
    card = {
        "job_id": None,
        "dataset": {"name": HOSTILE, "rows": 3},
        "settings": {"lora": {"r": 4}, "seed": 42},
        "results": {"train_loss": 0.12345678},
    }
    changes = {"model": {"name": HOSTILE}, "base": {"id": "org/base", "license": 'A license: of "mine"'}}
    made = write_output(
        write_spec(tmp_path / "export", tiny, adapter, card=card, **changes), tmp_path / "export", silent
    )
    _, front, text = (made / "README.md").read_text().split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["license"] == "other"
    assert values["license_name"] == changes["base"]["license"]
    assert values["base_model"] == "org/base"
    assert values["library_name"] == "transformers"
    assert values["pipeline_tag"] == "text-generation"
    assert "lora" in values["tags"]
    assert "<script>" not in text
    assert "\n---" not in text
    assert "| rows | 3 |" in text
    assert "| lora.r | 4 |" in text
    assert "| Mean loss over the epoch | 0.123457 |" in text
    assert made.name == "x-license-mit-script-alert-1-script-a-b-h"


@pytest.mark.full
def test_the_reference_is_cached_and_made_again_for_other_prompts(tmp_path, tiny, adapter, monkeypatch):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    expected_answers = reference.reference(spec, silent)
    assert len(expected_answers["rows"]) == 4
    assert all(
        len(row["log_probabilities"]) == len(row["margins"]) == len(row["answer_tokens"]) <= answering.MAX_TOKENS
        for row in expected_answers["rows"]
    )
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == ["reference.json", "spec.json"]
    with monkeypatch.context() as patched:
        patched.setattr(reference, "load_model", lambda _spec: pytest.fail("it is there already"))
        assert reference.reference(spec, silent) == expected_answers
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"rows": [{"prompt": [{"role": "user", "content": f"Item {i}"}]} for i in range(6)]}))
    other = reference.reference(write_spec(tmp_path / "export", tiny, adapter, probe=str(probe)), silent)
    assert [row["messages"][0]["content"] for row in other["rows"]] == ["Item 0", "Item 1", "Item 2", "Item 3"]
    Path(spec.reference).write_text('{"version": 2, "rows": [')
    assert reference.reference(spec, silent) == expected_answers


@pytest.mark.full
def test_non_finite_results_leave_no_reference(tmp_path, tiny, adapter):
    from safetensors.torch import load_file, save_file

    bad = tmp_path / "adapter"
    shutil.copytree(adapter, bad)
    weights = load_file(bad / "adapter_model.safetensors")
    save_file({name: tensor * 1e30 for name, tensor in weights.items()}, bad / "adapter_model.safetensors")
    spec = write_spec(tmp_path / "export", tiny, bad)
    with pytest.raises(JobError, match="computes no numbers") as raised:
        reference.reference(spec, silent)
    assert raised.value.code == "adapter_invalid"
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["spec.json"]


def test_narrow_weights_compute_the_same_as_float32_weights(tmp_path, tiny, adapter):
    from transformers import AutoModelForCausalLM

    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    model.save_pretrained(narrow)
    model.float().save_pretrained(wide)
    prompt, answer = list(range(40, 90)), list(range(5, 25))
    expected_answers = []
    for base in (narrow, wide):
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(tiny / name, base / name)
        loaded = reference.load_model(write_spec(tmp_path / "export", base, adapter))
        expected_answers.append(answering.log_probabilities(loaded, prompt, answer))
    assert max(abs(a - b) for a, b in zip(*expected_answers, strict=True)) < 1e-4
