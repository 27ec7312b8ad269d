"""The trained adapter as the two things people take: a PEFT folder, and the GGUF file that the engine loads."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer.base import sha256_of
from trainer.converters import run_converter
from trainer.errors import JobError
from trainer.spec import Spec

# Half precision moves a weight by at most 1 part in 2,000, far below what the base lost to quantization, and halves what the
# engine reads of the adapter for every token. The PEFT folder keeps float32.
OUTTYPE = "f16"


@dataclass(frozen=True)
class Adapter:
    folder: Path
    gguf: Path
    gguf_sha256: str


def save_adapter(model, tokenizer, spec: Spec, out: Path) -> Adapter:
    """Writes `out/adapter/` and `out/adapter.gguf`. May be repeated: what a killed attempt left there is replaced."""
    folder, gguf = out / "adapter", out / "adapter.gguf"
    shutil.rmtree(out, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder, save_embedding_layers=False)
    # peft writes a model card that is all blanks to fill in.
    (folder / "README.md").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    # The converter finds the base's shapes in its folder; its weights are not read.
    arguments = [str(folder), "--base", spec.base.path, "--outfile", str(gguf), "--outtype", OUTTYPE]
    run_converter(Path(spec.converters), "convert_lora_to_gguf.py", arguments)
    _check(gguf, folder)
    return Adapter(folder, gguf, sha256_of(gguf))


def _check(gguf_file: Path, folder: Path) -> None:
    """Raises JobError where the converted file is not the adapter in `folder`: the engine must never be given half of one."""
    import gguf
    from safetensors import safe_open

    if not gguf_file.exists():
        raise JobError("internal", "The converter left no file.")
    reader = gguf.GGUFReader(gguf_file)
    with safe_open(folder / "adapter_model.safetensors", "pt") as tensors:
        expected = len(tensors.keys())
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    fields = {name: reader.fields[name].contents() for name in ("general.type", "adapter.type", "adapter.lora.alpha")}
    if fields != {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(alpha)}:
        raise JobError("internal", f"The converted file does not describe the adapter: {fields}.")
    if len(reader.tensors) != expected:
        raise JobError("internal", f"The converted file has {len(reader.tensors)} tensors; the adapter has {expected}.")
