"""Saves a training result twice: as a Hugging Face folder, and as the GGUF file for the engine."""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.data.sight import PROCESSOR_FILES
from trainer.data.tokenizer import SENTENCEPIECE_FILES, Tokenizer
from trainer.data.tokenizer_identity import write_description
from trainer.model.adapter_changes import read_adapter
from trainer.model.experts import describe_to_peft
from trainer.model.left_out import copy_left_out
from trainer.model.merge import merge
from trainer.model.model import Model
from trainer.run.convert_to_gguf import convert_adapter, convert_model
from trainer.run.projector_file import NAME as PROJECTOR
from trainer.run.projector_file import write_projector
from trainer.runtime.errors import converting
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import ModelSpec

FOLDERS = {"adapter": "adapter", "model": "hf"}
# What a checkpoint has beside its weights and its tokenizer.
DESCRIPTIONS = ("config.json", "generation_config.json")


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

    def as_data(self) -> dict[str, Any]:
        """For the `result` line."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def save(model: Model, tokenizer: Tokenizer, spec: ModelSpec, out: Path) -> Artifact:
    """Writes `out/adapter/` and `out/adapter.gguf`, or `out/hf/` and `out/model.gguf`, and `out/mmproj.gguf` of a
    projector that was trained. Replaces the files of a killed attempt.
    """
    write_folder(model, tokenizer, spec, out)
    return convert(tokenizer, spec, out)


def write_folder(model: Model, tokenizer: Tokenizer, spec: ModelSpec, out: Path) -> None:
    """What `save` needs the model for: all but the converted file."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    folder = out / FOLDERS[_kind(spec)]
    if spec.method == "full":
        model.config._name_or_path = spec.base.id
        model.save_pretrained(folder)
        copy_left_out(Path(spec.base.path), folder)
    elif spec.merge:
        save_merged(model, Path(spec.base.path), folder)
    else:
        _save_adapter(model, folder)
    tokenizer.save_pretrained(folder)
    _copy_from_base(folder, spec)
    write_description(folder, tokenizer, spec)
    if spec.projector:
        write_projector(model, spec, out)


def save_merged(model: Model, base: Path, folder: Path) -> None:
    """Writes the checkpoint in `base` with the model's adapter in its weights, without tokenizer and processor. Takes
    little memory. Raises JobError("adapter_invalid") if the adapter does not fit its files.
    """
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as adapter:
        _save_adapter(model, Path(adapter))
        merged = merge(base, read_adapter(Path(adapter), base), folder, None, lambda _: None)
    for name in DESCRIPTIONS:
        if (base / name).exists():
            shutil.copyfile(base / name, folder / name)
    if merged.untied:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}, indent=2) + "\n")


def _save_adapter(model: Model, folder: Path) -> None:
    model.save_pretrained(folder, save_embedding_layers=False)
    describe_to_peft(model, folder)
    # peft's model card is an empty form.
    (folder / "README.md").unlink(missing_ok=True)


def convert(tokenizer: Tokenizer, spec: ModelSpec, out: Path) -> Artifact:
    """Converts what `write_folder` wrote. Raises JobError with a reason for the user if that is impossible."""
    kind = _kind(spec)
    folder, gguf = out / FOLDERS[kind], out / f"{kind}.gguf"
    with converting(f"The {kind} cannot be converted for the engine", "Take another base, or another method."):
        if kind == "model":
            convert_model(Path(spec.converters), folder, gguf)
        else:
            convert_adapter(tokenizer, spec, folder, gguf)
    projector = out / PROJECTOR if spec.projector else None
    return Artifact(kind, folder, gguf, sha256_of(gguf), projector, projector and sha256_of(projector))


def _kind(spec: ModelSpec) -> str:
    return "adapter" if spec.makes_adapter else "model"


def _copy_from_base(folder: Path, spec: ModelSpec) -> None:
    """Copies what says how a vision base reads pictures, and of whole weights what their conversion reads."""
    for name in (*PROCESSOR_FILES, *(SENTENCEPIECE_FILES if _kind(spec) == "model" else ())):
        if (file := Path(spec.base.path) / name).exists():
            shutil.copyfile(file, folder / name)
