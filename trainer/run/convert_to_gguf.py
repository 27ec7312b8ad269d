"""Converts a result's folder to the GGUF file for the engine: a LoRA adapter, or a whole model."""

import json
from pathlib import Path

from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_identity import add_to_gguf
from trainer.run.projector_file import pairs_alone
from trainer.runtime.converters import run_converter
from trainer.runtime.errors import JobError
from trainer.runtime.spec import ModelSpec

# Half precision changes a weight by at most 1 part in 2,000, far less than the base's quantization, and halves what the
# engine reads of the adapter for every token. The PEFT folder keeps float32.
ADAPTER_TYPE = "f16"
# Eight bits serve twice as fast as sixteen with the same answers up to the last digits. The folder keeps float32.
MODEL_TYPE = "q8_0"


def convert_model(spec: ModelSpec, folder: Path, gguf: Path) -> None:
    """Converts a whole checkpoint. Raises RuntimeError or JobError("internal") if there is no file afterwards."""
    run_converter(
        Path(spec.converters), "convert_hf_to_gguf.py", [str(folder), "--outfile", str(gguf), "--outtype", MODEL_TYPE]
    )
    if not gguf.exists():
        raise JobError("internal", "The converter left no file.")


def convert_adapter(tokenizer: Tokenizer, spec: ModelSpec, folder: Path, gguf: Path) -> None:
    """Converts a PEFT folder, and adds template and end token. Raises JobError("internal") if it lost a tensor."""
    # The converter reads the base's shapes from its folder, not its weights.
    with pairs_alone(folder, folder.parent) as pairs:
        arguments = [str(pairs), "--base", spec.base.path, "--outfile", str(gguf), "--outtype", ADAPTER_TYPE]
        run_converter(Path(spec.converters), "convert_lora_to_gguf.py", arguments)
    add_to_gguf(gguf, tokenizer, spec)
    check_adapter(gguf, folder)


def check_adapter(gguf_file: Path, folder: Path) -> None:
    """Raises JobError if the converted file is not the adapter in `folder`: the engine must never load a partial
    one.
    """
    import gguf
    from safetensors import safe_open

    if not gguf_file.exists():
        raise JobError("internal", "The converter left no file.")
    reader = gguf.GGUFReader(gguf_file)
    with safe_open(folder / "adapter_model.safetensors", "pt") as tensors:
        expected = sum(".lora_" in name for name in tensors.keys())  # noqa: SIM118
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    fields = {name: reader.fields[name].contents() for name in ("general.type", "adapter.type", "adapter.lora.alpha")}
    if fields != {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(alpha)}:
        raise JobError("internal", f"The converted file does not describe the adapter: {fields}.")
    if len(reader.tensors) != expected:
        raise JobError("internal", f"The converted file has {len(reader.tensors)} tensors; the adapter has {expected}.")
