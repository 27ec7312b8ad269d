"""A checkpoint that is not of one piece is refused in a sentence that says what to do, and no program of it runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.families.checkpoints import write
from trainer.cli.prepare_base import convert, describe
from trainer.model.plausible import require_config, require_weights
from trainer.tests.make_tiny import make_tiny
from trainer.tests.test_base_check import CONVERTERS

CONFIGS = {
    'architectures .* a list.* is "LlamaForCausalLM"': {"architectures": "LlamaForCausalLM"},
    "architectures .* is missing": {"architectures": ...},
    'model_type .* is \\["llama"\\]': {"model_type": ["llama"]},
    "text_config .* an object, and is null": {"text_config": None},
    "vision_config .* an object, and is \\[1\\]": {"vision_config": [1]},
    "quantized \\(nope\\)": {"quantization_config": {"quant_method": "nope"}},
    'quantization_config .* is "fp8"': {"quantization_config": "fp8"},
    "expected int, got bool": {"max_position_embeddings": True},
    "expected int, got float": {"max_position_embeddings": 2048.0},
    "max_position_embeddings .* fits 32 bits": {"max_position_embeddings": 1 << 60},
    "at most the 20 tensors .* is 1000000000": {"num_hidden_layers": 10**9},
    "config.json needs model.layers.2.* and 17 more": {"num_hidden_layers": 4},
    "cannot be used: .*ZeroDivisionError": {"num_attention_heads": 0},
    "embed_tokens.weight is \\[49152, 64\\] in the files, and \\[60000, 64\\]": {"vocab_size": 60000},
    "embed_tokens.weight is \\[49152, 64\\] in the files, and \\[40000, 64\\]": {"vocab_size": 40000},
    "does not know the architecture Nope": {"architectures": ["Nope"]},
    "knows no architecture 'nope'": {"model_type": "nope"},
    "programs of its own": {"model_type": "nope", "auto_map": {"AutoConfig": "own.Own"}},
}
PROGRAM = "import pathlib; pathlib.Path(__file__).with_name('ran').touch(); raise SystemExit\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def changed(whole, tmp_path):
    """A copy of the tiny checkpoint, as `prepare_base` has one, with other fields in its config.json."""

    def change(fields: dict[str, object]) -> Path:
        folder = tmp_path / "hf"
        shutil.copytree(whole, folder)
        config = json.loads((folder / "config.json").read_text()) | fields
        config = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "own.py").write_text(PROGRAM)
        return folder

    return change


@pytest.mark.parametrize("sentence", CONFIGS)
def test_a_configuration_of_another_model_or_of_none(changed, sentence):
    folder = changed(CONFIGS[sentence])
    with pytest.raises(RuntimeError, match=sentence) as refused:
        convert(folder.parent, CONVERTERS)
    assert "\n" not in str(refused.value)
    assert not (folder / "ran").exists()


def test_programs_beside_a_known_architecture_are_left_alone(changed):
    maps = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    folder = changed({"auto_map": maps})
    convert(folder.parent, CONVERTERS)
    assert (folder.parent / "model.gguf").exists() and not (folder / "ran").exists()
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | own))
    with pytest.raises(RuntimeError, match="programs of its own"):
        convert(folder.parent, CONVERTERS)
    assert not (folder / "ran").exists()


def test_a_missing_file(changed):
    folder = changed({})
    second = "model-00002-of-00002.safetensors"
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {**names, "lm_head": second}}))
    with pytest.raises(RuntimeError, match=f"misses {second}.* Add it to the folder"):
        convert(folder.parent, CONVERTERS)


@pytest.mark.parametrize("name", ["qwen3_moe", "lfm2_moe", "granite_h", "qwen3_5"])
def test_every_tensor_of_the_language_model_is_needed(tmp_path, name):
    """Experts that are one weight in memory, buffers that are saved, and a model below one that sees."""
    write(name, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    require_config(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    require_weights(tmp_path)
    inside = [key for key in tensors if ".layers." in key and not key.startswith("mtp.")]
    chosen = [key for key in inside if not any(part in key for part in ("vis", "audio"))][::5]
    for key in chosen:
        save_file({other: value for other, value in tensors.items() if other != key}, file, {"format": "pt"})
        with pytest.raises(RuntimeError, match=r"not whole|different models|not what its config"):
            require_weights(tmp_path)


def _without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def _with_template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [(_without_template, "it has no chat template"), (_with_template("{% for %}"), "its chat template cannot be read")],
)
def test_a_base_that_renders_no_conversation_is_served_alone(changed, change, why):
    folder = changed({})
    change(folder)
    convert(folder.parent, CONVERTERS)
    untrainable = describe("test/mute", folder.parent, "a local folder", CONVERTERS)["untrainable"]
    assert untrainable.startswith(why) and "take chat_template.jinja" in untrainable


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", marks=pytest.mark.full
        ),
        "{% set ns = namespace(a='a') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_or_takes_all_memory_is_refused(changed, template):
    folder = changed({})
    _with_template(template)(folder)
    with pytest.raises(RuntimeError, match="rendering a short conversation takes more than"):
        convert(folder.parent, CONVERTERS)
    # The bounds are for that alone.
    assert torch.zeros(1 << 29, dtype=torch.uint8).nbytes == 1 << 29
