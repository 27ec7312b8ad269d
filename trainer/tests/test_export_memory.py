"""An export needs little more memory than the model: weights stream, and each stage's memory is freed before the
next.
"""

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from trainer.export.__main__ import STAGES
from trainer.tests.conftest import ROOT
from trainer.tests.exporting import write_adapter, write_spec
from trainer.tests.make_tiny import TOKENIZER

MAX_OVERHEAD = 500e6


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = write_adapter(TOKENIZER, tmp_path_factory.mktemp("adapters") / "adapter", r=8, target_modules="all-linear")
    file = folder / "adapter_model.safetensors"
    # Small enough that the model still computes something like language.
    save_file({name: tensor / 20 for name, tensor in load_file(file).items()}, file)
    return folder


# `most_making`: if weights are only copied, the memory of Python with torch and transformers, and some rows.
@pytest.mark.full
@pytest.mark.parametrize(
    ("format", "quantization", "most_making"), [("huggingface", None, 470e6), ("onnx", "int8", None)]
)
def test_every_stage_of_the_default_models_export_stays_within_its_memory(
    tmp_path, adapter, format, quantization, most_making
):
    folder, reference_path = tmp_path / "export", adapter.parent / "reference.json"
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"rows": [{"prompt": [{"role": "user", "content": "Name three colours."}]}]}))
    spec = {
        "format": format,
        "quantization": quantization,
        "probe": str(probe),
        "reference": str(reference_path),
        "threads": 2,
    }
    write_spec(folder, TOKENIZER, adapter, **spec)
    size = (TOKENIZER / "model.safetensors").stat().st_size
    for stage in STAGES[format]:
        command = [sys.executable, "-m", "trainer.export.stage", stage, str(folder)]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 0, done.stderr
        peak = json.loads(done.stdout.splitlines()[-1])["data"]["peak_memory_mb"] * 1e6
        limit = size + MAX_OVERHEAD
        if stage == "make" and most_making:
            limit = most_making
        if stage == "check":
            # The size of the loaded model, which is smaller when quantized.
            limit = min(size, sum(file.stat().st_size for file in (folder / "out").rglob("*"))) + MAX_OVERHEAD
        assert peak < limit, stage
    if not quantization:
        reference, answers = (
            json.loads(path.read_text())["rows"] for path in (reference_path, folder / "answers.json")
        )
        assert [row["answer_tokens"] for row in answers] == [row["answer_tokens"] for row in reference]
