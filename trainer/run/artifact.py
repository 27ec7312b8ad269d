"""Saves a training result twice: as a Hugging Face folder, and as the GGUF file for the engine."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.data.sight import PROCESSOR_FILES
from trainer.data.tokenizer_identity import add_to_gguf, write_description
from trainer.run.projector_file import NAME as PROJECTOR
from trainer.run.projector_file import pairs_alone, write_projector
from trainer.runtime.converters import run_converter
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import ModelSpec

# Half precision changes a weight by at most 1 part in 2,000, far less than the base's quantization, and halves what the
# engine reads of the adapter for every token. The PEFT folder keeps float32.
ADAPTER_TYPE = "f16"
# Eight bits serve twice as fast as sixteen with the same answers up to the last digits. The folder keeps float32.
MODEL_TYPE = "q8_0"
FOLDERS = {"adapter": "adapter", "model": "hf"}


@dataclass(frozen=True)
class Artifact:
    """`kind`: adapter (a PEFT folder, served on its base) or model (a whole checkpoint). `projector`: the file of one
    that was trained; without it, the result reads pictures as what it was made from.
    """

    kind: str
    folder: Path
    gguf: Path
    gguf_sha256: str
    projector: Path | None = None
    projector_sha256: str | None = None

    def as_data(self) -> dict:
        """For the `result` line."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def save(model, tokenizer, spec: ModelSpec, out: Path) -> Artifact:
    """Writes `out/adapter/` and `out/adapter.gguf`, or `out/hf/` and `out/model.gguf`, and `out/mmproj.gguf` of a
    projector that was trained. Replaces the files of a killed attempt.
    """
    write_folder(model, tokenizer, spec, out)
    return convert(tokenizer, spec, out)


def write_folder(model, tokenizer, spec: ModelSpec, out: Path) -> None:
    """What `save` needs the model for: all but the converted file."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    folder = out / FOLDERS[_kind(spec)]
    if spec.method == "full":
        model.config._name_or_path = spec.base.id
        model.save_pretrained(folder)
    else:
        model.save_pretrained(folder, save_embedding_layers=False)
        # peft's model card is an empty form.
        (folder / "README.md").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    _add_processor(folder, spec)
    write_description(folder, tokenizer, spec)
    if spec.projector:
        write_projector(model, spec, out)


def convert(tokenizer, spec: ModelSpec, out: Path) -> Artifact:
    """Converts what `write_folder` wrote."""
    kind = _kind(spec)
    folder, gguf = out / FOLDERS[kind], out / f"{kind}.gguf"
    if kind == "model":
        _convert_model(spec, folder, gguf)
    else:
        _convert_adapter(tokenizer, spec, folder, gguf)
    projector = out / PROJECTOR if spec.projector else None
    return Artifact(kind, folder, gguf, sha256_of(gguf), projector, projector and sha256_of(projector))


def _kind(spec: ModelSpec) -> str:
    return "model" if spec.method == "full" else "adapter"


def _convert_model(spec: ModelSpec, folder: Path, gguf: Path) -> None:
    run_converter(
        Path(spec.converters), "convert_hf_to_gguf.py", [str(folder), "--outfile", str(gguf), "--outtype", MODEL_TYPE]
    )
    if not gguf.exists():
        raise JobError("internal", "The converter left no file.")


def _add_processor(folder: Path, spec: ModelSpec) -> None:
    """Copies what says how a vision base reads pictures; the tokenizer has the chat template."""
    for name in PROCESSOR_FILES:
        if (file := Path(spec.base.path) / name).exists():
            shutil.copyfile(file, folder / name)


def _convert_adapter(tokenizer, spec: ModelSpec, folder: Path, gguf: Path) -> None:
    # The converter reads the base's shapes from its folder, not its weights.
    with pairs_alone(folder, folder.parent) as pairs:
        arguments = [str(pairs), "--base", spec.base.path, "--outfile", str(gguf), "--outtype", ADAPTER_TYPE]
        run_converter(Path(spec.converters), "convert_lora_to_gguf.py", arguments)
    add_to_gguf(gguf, tokenizer, spec)
    _check(gguf, folder)


def _check(gguf_file: Path, folder: Path) -> None:
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
