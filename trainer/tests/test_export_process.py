"""An export as a process with pipes and signals: it reports only complete files."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import pytest

from trainer.runtime.gguf_reader import GgufReader
from trainer.tests.conftest import ROOT
from trainer.tests.exporting import write_adapter, write_spec
from trainer.tests.make_tiny import TOKENIZER


def start(folder: Path, module: str = "trainer.export") -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", module, str(folder)], cwd=ROOT, **pipes)


def lines_of(process: subprocess.Popen) -> list[dict]:
    lines = [json.loads(line) for line in process.stdout]
    assert all(set(line) == {"type", "message", "data"} for line in lines)
    return lines


@pytest.fixture(scope="module")
def adapter(convertible, tmp_path_factory):
    """An adapter as a job leaves it, with its GGUF file."""
    from transformers import AutoTokenizer

    from trainer.run.convert_to_gguf import convert_adapter
    from trainer.runtime.spec import Base, ModelSpec
    from trainer.tests.conftest import CONVERTERS

    folder = write_adapter(
        convertible, tmp_path_factory.mktemp("adapters") / "adapter", r=4, target_modules="all-linear"
    )
    spec = ModelSpec(
        job_id="job_1",
        base=Base("test/tiny", str(convertible)),
        method="lora",
        lora=None,
        start=None,
        threads=1,
        converters=str(CONVERTERS),
    )
    convert_adapter(AutoTokenizer.from_pretrained(folder), spec, folder, folder.with_suffix(".gguf"))
    return folder


@pytest.fixture(scope="module")
def reference_path(tmp_path_factory):
    """The path of the reference answers that the first test leaves for the others."""
    return str(tmp_path_factory.mktemp("kept") / "reference.json")


@pytest.mark.full
def test_an_export_makes_checks_and_reports_a_folder(tmp_path, convertible, adapter, reference_path):
    folder = tmp_path / "export"
    spec = write_spec(folder, convertible, adapter, archive="tar", reference=reference_path)
    process = start(folder)
    lines = lines_of(process)
    assert process.wait(10) == 0, process.stderr.read()
    stages = [line["data"]["stage"] for line in lines if line["type"] == "progress"]
    assert list(dict.fromkeys(stages)) == ["reference", "merge", "check"]
    result = lines[-1]["data"]
    assert lines[-1]["type"] == "result"
    assert result["out"] == str(folder / "out" / spec.folder_name)
    names = {Path(file["path"]).name for file in result["files"]}
    assert {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    } <= names
    reference, answers = (json.loads(Path(result[name]).read_text()) for name in ("reference", "answers"))
    assert answers["runtime"].startswith("transformers 5")
    assert [row["answer_tokens"] for row in answers["rows"]] == [row["answer_tokens"] for row in reference["rows"]]
    assert {path.name for path in folder.iterdir()} == {"spec.json", "out", "answers.json"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("quantization", "name", "file_name"),
    [("F16", "--größe·v1", "gro-e-v1"), ("BF16", "Tickets", "Tickets"), ("Q4_K_M", "Tickets", "Tickets")],
)
def test_a_gguf_file_has_the_merged_weights_the_template_and_the_end_token(
    tmp_path, convertible, adapter, quantization, name, file_name
):
    from safetensors.torch import load_file

    folder = tmp_path / "export"
    # Other tests cover the reference answers.
    spec = write_spec(folder, convertible, adapter, format="gguf", quantization=quantization, model={"name": name})
    from trainer.export.stage import make

    out = Path(make(spec, folder, lambda *_: None)["out"])
    kind = {"Q4_K_M": "F32"}.get(quantization, quantization)
    assert out.name == f"{file_name}-{kind}.gguf"
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["out"]
    reader = GgufReader(out)
    long = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type")
    fields = {key: field.contents() for key, field in reader.fields.items() if key not in long}
    assert fields["tokenizer.chat_template"] == (TOKENIZER / "chat_template.jinja").read_text()
    assert reader.fields["tokenizer.ggml.tokens"].contents(fields["tokenizer.ggml.eos_token_id"]) == "<|im_end|>"
    assert fields["tokenizer.ggml.pre"] == "smollm"
    assert fields["general.name"] == name
    assert fields["general.license"] == "apache-2.0"
    assert str(tmp_path) not in str(fields)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(load_file(convertible / "model.safetensors"))
    assert tensors["blk.1.ffn_down.weight"].tensor_type.name == kind
    assert tensors["blk.1.attn_norm.weight"].tensor_type.name == "F32"
    base, parts = load_file(convertible / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    layer = "model.layers.1.mlp.down_proj"
    a, b = (parts[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
    expected = (base[f"{layer}.weight"] + 8 / 4 * b @ a).numpy()
    found = gguf.quants.dequantize(tensors["blk.1.ffn_down.weight"].data, tensors["blk.1.ffn_down.weight"].tensor_type)
    steps = {"F32": 1e-6, "F16": 2**-11, "BF16": 2**-8}[kind]
    assert abs(found - expected).max() <= steps * abs(expected).max()


@pytest.mark.parametrize("quantization", [None, "Q8_0"])
def test_an_adapter_alone_is_a_gguf_file_with_template_and_end_token(tmp_path, convertible, adapter, quantization):
    from trainer.export.stage import make

    folder = tmp_path / "export"
    spec = write_spec(folder, convertible, adapter, format="gguf", merge=False, quantization=quantization)
    out = Path(make(spec, folder, lambda *_: None)["out"])
    fields = {name: field.contents() for name, field in GgufReader(out).fields.items()}
    assert fields["general.type"] == "adapter"
    assert fields["tokenizer.chat_template"] == (TOKENIZER / "chat_template.jinja").read_text()
    assert fields["tunery.eos_token"] == "<|im_end|>"
    assert fields["tunery.base_model_id"] == "test/tiny"
    # Rows of four numbers (B of a small rank) do not fill a block of 32 and keep a wider type.
    kinds = {tensor.name.rpartition(".")[2]: tensor.tensor_type.name for tensor in GgufReader(out).tensors}
    assert kinds == {"lora_a": quantization or "F16", "lora_b": "F16"}
    assert out.samefile(adapter.with_suffix(".gguf")) == (quantization is None)


@pytest.mark.full
def test_a_killed_export_reports_no_result_and_the_next_attempt_is_complete(
    tmp_path, convertible, adapter, reference_path
):
    folder = tmp_path / "export"
    write_spec(folder, convertible, adapter, format="gguf", quantization="F16", reference=reference_path)
    process = start(folder)
    for raw in process.stdout:
        if json.loads(raw)["data"].get("stage") == "convert":
            break
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait(10)
    assert b'"result"' not in rest
    # The stage has ended too: it had the same pipe open.
    (folder / "out/half").write_bytes(b"half")
    again = start(folder)
    result = lines_of(again)[-1]
    assert again.wait(10) == 0, again.stderr.read()
    assert [file.name for file in (folder / "out").iterdir()] == [Path(result["data"]["out"]).name]
    GgufReader(result["data"]["out"])


@pytest.mark.full
@pytest.mark.parametrize(("end", "status"), [("stdin", 74), ("SIGTERM", 75)])
def test_the_export_ends_with_its_server_and_on_sigterm(tmp_path, convertible, adapter, end, status):
    folder = tmp_path / "export"
    write_spec(folder, convertible, adapter)
    process = start(folder)
    process.stdout.readline()
    if end == "stdin":
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait(10) == status
    # Waits for the stage's end too: it has the other end of this pipe.
    process.stderr.read()
    assert time.monotonic() - began < 5


@pytest.mark.full
def test_a_failure_is_one_error_line_and_status_1(tmp_path, convertible, adapter):
    folder = tmp_path / "export"
    write_spec(folder, tmp_path / "gone", adapter)
    process = start(folder)
    lines = lines_of(process)
    assert process.wait(10) == 1
    assert [(line["type"], line["data"].get("code")) for line in lines] == [("error", "base_missing")]
    (folder / "spec.json").write_text("{")
    process = start(folder)
    lines = lines_of(process)
    assert process.wait(10) == 1
    assert [(line["type"], line["data"].get("code")) for line in lines] == [("error", "internal")]
