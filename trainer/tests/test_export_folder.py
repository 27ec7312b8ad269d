"""An exported folder is loaded by anybody's transformers as it is and answers as the trainer's model; what is wrong
with one shows.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from trainer.export import answering, check, reference
from trainer.export.make import make
from trainer.runtime.errors import JobError
from trainer.tests.exporting import silent, write_adapter, write_spec


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    return write_adapter(tiny, tmp_path_factory.mktemp("adapters") / "adapter", r=4, target_modules="all-linear")


def differences(told: dict, rows: list[dict]) -> list[float]:
    pairs = zip(told["rows"], rows, strict=True)
    return [
        abs(a - b)
        for one, other in pairs
        for a, b in zip(one["log_probabilities"], other["log_probabilities"], strict=True)
    ]


def test_the_merged_folder_answers_as_the_base_with_the_adapter_beside_it(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    told = reference.reference(spec, silent)
    made = make(spec, tmp_path / "export", silent)
    rows = check.answers(made, None, told, silent)
    assert [row["prompt_tokens"] for row in rows] == [row["prompt_tokens"] for row in told["rows"]]
    assert [row["answer_tokens"] for row in rows] == [row["answer_tokens"] for row in told["rows"]]
    assert max(differences(told, rows)) < 1e-3
    # The base alone answers otherwise: the comparison sees whether the training is in the folder.
    base = check.answers(tiny, None, told, silent)
    assert sum(differences(told, base)) / len(differences(told, base)) > 0.05


def test_anybodys_pipeline_takes_the_folder_as_it_is(tmp_path, tiny, adapter):
    from transformers import pipeline

    spec = write_spec(tmp_path / "export", tiny, adapter)
    told = reference.reference(spec, silent)
    made = make(spec, tmp_path / "export", silent)
    generate = pipeline("text-generation", str(made))
    for row in told["rows"]:
        (found,) = generate(row["messages"], max_new_tokens=64, do_sample=False)
        assert found["generated_text"][-1]["content"] == row["answer"]


def test_the_adapter_alone_is_loaded_by_peft_and_names_its_base_as_others_find_it(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter, merge=False)
    told = reference.reference(spec, silent)
    made = make(spec, tmp_path / "export", silent)
    rows = check.answers(made, tiny, told, silent)
    assert [row["answer_tokens"] for row in rows] == [row["answer_tokens"] for row in told["rows"]]
    assert max(differences(told, rows)) < 1e-3
    assert json.loads((made / "adapter_config.json").read_text())["base_model_name_or_path"] == "test/tiny"
    assert made.name == "Tickets-adapter"


def test_no_file_names_a_place_on_this_machine(tmp_path, tiny, adapter):
    for merge in (True, False):
        spec = write_spec(tmp_path / "export", tiny, adapter, merge=merge)
        made = make(spec, tmp_path / "export", silent)
        for file in made.iterdir():
            assert not any(
                str(place).encode() in file.read_bytes() for place in (tiny, adapter, tmp_path, Path.home())
            ), file


@pytest.mark.parametrize("quantization", [None, "bf16", "fp16", "fp32"])
def test_a_whole_model_is_taken_as_it_is_or_in_the_type_asked_for(tmp_path, tiny, quantization):
    spec = write_spec(tmp_path / "export", tiny, tiny, model={"method": "full"}, quantization=quantization)
    made = make(spec, tmp_path / "export", silent)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(quantization, torch.float32)
    with safe_open(made / "model.safetensors", "pt") as found, safe_open(tiny / "model.safetensors", "pt") as own:
        assert set(found.keys()) == set(own.keys())
        for name in own.keys():  # noqa: SIM118 (no dict)
            assert found.get_tensor(name).equal(own.get_tensor(name).to(dtype))
    config = json.loads((made / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == str(dtype).removeprefix("torch.")
    if quantization in (None, "fp32"):
        assert (made / "model.safetensors").samefile(tiny / "model.safetensors")


def test_an_export_in_sixteen_bits_answers_nearly_the_same(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter, quantization="bf16")
    told = reference.reference(spec, silent)
    rows = check.answers(make(spec, tmp_path / "export", silent), None, told, silent)
    found = differences(told, rows)
    assert 0 < sum(found) / len(found) < 0.05


def broken(made: Path, name: str, change) -> None:
    values = json.loads((made / name).read_text())
    change(values)
    (made / name).write_text(json.dumps(values))


def test_a_broken_template_shows_in_the_prompts_tokens(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    told = reference.reference(spec, silent)
    made = make(spec, tmp_path / "export", silent)
    template = (made / "chat_template.jinja").read_text()
    (made / "chat_template.jinja").write_text(template.replace("<|im_start|>assistant", "<|im_start|>asistant"))
    rows = check.answers(made, None, told, silent)
    for row, expected in zip(rows, told["rows"], strict=True):
        assert row["prompt_tokens"] != expected["prompt_tokens"]


def test_a_broken_tokenizer_or_rotary_base_shows(tmp_path, tiny, adapter):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    told = reference.reference(spec, silent)
    made = make(spec, tmp_path / "export", silent)
    shutil.copytree(made, tmp_path / "tokenizer")
    broken(
        tmp_path / "tokenizer",
        "tokenizer.json",
        lambda values: values.update(
            pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        ),
    )
    rows = check.answers(tmp_path / "tokenizer", None, told, silent)
    assert any(
        row["prompt_tokens"] != expected["prompt_tokens"] for row, expected in zip(rows, told["rows"], strict=True)
    )
    broken(
        made, "config.json", lambda values: values.update(rope_parameters={"rope_type": "default", "rope_theta": 10.0})
    )
    assert max(differences(told, check.answers(made, None, told, silent))) > 0.01


def test_readers_of_other_versions_find_what_they_look_for(tmp_path, tiny, adapter):
    """Releases before transformers 5 take 10,000 for a rotary base that they do not find, and know no class
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
    made = make(write_spec(tmp_path / "export", base, plain), tmp_path / "export", silent)
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


def test_every_token_that_ends_an_answer_is_among_the_generation_defaults(tmp_path, tiny, adapter):
    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    # As some checkpoints have it: every file names the end of a document, and the template ends turns with another
    # token.
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    broken(own, "tokenizer_config.json", lambda values: values.update(eos_token="<|endoftext|>"))
    broken(base, "config.json", lambda values: values.update(eos_token_id=0))
    broken(
        base, "generation_config.json", lambda values: values.update(eos_token_id=0, temperature=0.7, do_sample=True)
    )
    made = make(write_spec(tmp_path / "export", base, own), tmp_path / "export", silent)
    found = json.loads((made / "generation_config.json").read_text())
    assert found["eos_token_id"] == [0, 2]
    assert found["temperature"] == 0.7
    assert "_from_model_config" not in found


HOSTILE = "x |\n\n---\nlicense: mit\n<script>alert(1)</script> `[a](b)` \x00 # h"


def test_the_card_is_valid_and_names_stay_text(tmp_path, tiny, adapter):
    card = {
        "job_id": None,
        "dataset": {"name": HOSTILE, "rows": 3},
        "settings": {"lora": {"r": 4}, "seed": 42},
        "results": {"train_loss": 0.12345678},
    }
    changes = {"model": {"name": HOSTILE}, "base": {"id": "org/base", "license": 'A licence: of "mine"'}}
    made = make(write_spec(tmp_path / "export", tiny, adapter, card=card, **changes), tmp_path / "export", silent)
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


def test_the_reference_is_kept_and_made_anew_where_it_is_of_other_prompts(tmp_path, tiny, adapter, monkeypatch):
    spec = write_spec(tmp_path / "export", tiny, adapter)
    told = reference.reference(spec, silent)
    assert len(told["rows"]) == 4
    assert all(
        len(row["log_probabilities"]) == len(row["answer_tokens"]) <= answering.MOST_TOKENS for row in told["rows"]
    )
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == ["reference.json", "spec.json"]
    with monkeypatch.context() as patched:
        patched.setattr(reference, "load_model", lambda _spec: pytest.fail("it is there already"))
        assert reference.reference(spec, silent) == told
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"rows": [{"prompt": [{"role": "user", "content": f"Item {i}"}]} for i in range(6)]}))
    other = reference.reference(write_spec(tmp_path / "export", tiny, adapter, probe=str(probe)), silent)
    assert [row["messages"][0]["content"] for row in other["rows"]] == ["Item 0", "Item 1", "Item 2", "Item 3"]
    Path(spec.reference).write_text('{"version": 1, "rows": [')
    assert reference.reference(spec, silent) == told


def test_weights_that_compute_no_numbers_leave_no_reference(tmp_path, tiny, adapter):
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


def test_narrow_weights_compute_what_wide_ones_do(tmp_path, tiny, adapter):
    from transformers import AutoModelForCausalLM

    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    model.save_pretrained(narrow)
    model.float().save_pretrained(wide)
    prompt, answer = list(range(40, 90)), list(range(5, 25))
    told = []
    for base in (narrow, wide):
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(tiny / name, base / name)
        loaded = reference.load_model(write_spec(tmp_path / "export", base, adapter))
        told.append(answering.log_probabilities(loaded, prompt, answer))
    assert max(abs(a - b) for a, b in zip(*told, strict=True)) < 1e-4
