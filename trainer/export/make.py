"""What is asked for, made: a folder for transformers and vLLM, a GGUF file, the graph of a folder for ONNX Runtime."""

import json
import shutil
from pathlib import Path

from trainer.export import importance, onnx
from trainer.export.adapter import read_adapter
from trainer.export.card import write_card
from trainer.export.folder import (
    copy_other,
    read_json,
    without_places,
    write_config,
    write_generation_config,
    write_json,
    write_tokenizer,
)
from trainer.export.gguf_file import adapter_file, convert, link, type_of
from trainer.export.merge import merge
from trainer.export.reference import load_tokenizer, whole_folder
from trainer.export.spec import DTYPES, Export
from trainer.export.tensors import FLOATING, INDEX, read_checkpoint
from trainer.runtime.errors import JobError
from trainer.runtime.files import sync_tree


def make(spec: Export, folder: Path, tell) -> Path | None:
    """Writes under `folder/out` and returns what was written there. `tell(stage, done)` is told how far it is.

    Of ONNX it makes the graph alone, which `finish` (trainer/export/onnx.py) makes the folder of, and returns null.
    """
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if spec.format == "onnx":
        return _graph(spec, folder, tell)
    made = {"huggingface": _hugging_face, "gguf": _gguf}[spec.format](spec, folder, out, tell)
    sync_tree(made)
    return made


def _hugging_face(spec: Export, _folder: Path, out: Path, tell) -> Path:
    made = out / spec.folder_name
    made.mkdir()
    if spec.adapter_alone:
        write_adapter_folder(spec, made)
    else:
        write_checkpoint_folder(spec, made, DTYPES.get(spec.quantization or ""), True, lambda done: tell("merge", done))
    return made


def _gguf(spec: Export, folder: Path, out: Path, tell) -> Path:
    if spec.adapter_alone:
        return adapter_file(spec, out)
    kind = type_of(spec, whole_folder(spec))
    work = _work(folder)
    # The file's own rule: matrices in its type, norms and biases as they are.
    write_checkpoint_folder(spec, work, kind, False, lambda done: tell("merge", done))
    tell("convert", 0.0)
    file = out / f"{spec.name}-{kind}.gguf"
    convert(spec, work, file, kind)
    if spec.importance:
        importance.for_file(Path(spec.importance), file, folder / "importance.safetensors")
    shutil.rmtree(work)
    tell("convert", 1.0)
    return file


def _graph(spec: Export, folder: Path, tell) -> None:
    work = _work(folder)
    write_checkpoint_folder(spec, work, "F32", True, lambda done: tell("merge", done))
    tell("convert", 0.0)
    onnx.build(work, folder / "graph", spec.quantization, spec.threads, lambda done: tell("convert", done / 2))


def _work(folder: Path) -> Path:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return work


def write_checkpoint_folder(spec: Export, out: Path, dtype: str | None, vectors: bool, tell) -> None:
    """A whole checkpoint as transformers loads it: the model, or its adapter merged into what it stands on.

    `dtype`, `vectors`: as for `merge`.
    """
    source = whole_folder(spec)
    own = Path(spec.model.folder)
    adapter = read_adapter(own) if spec.model.kind == "adapter" else None
    entries = read_checkpoint(source)
    kinds = {entry.dtype for entry in entries.values() if entry.dtype in FLOATING}
    if adapter is None and (dtype is None or kinds == {dtype}):
        for name in sorted(
            {entry.file.name for entry in entries.values()} | ({INDEX} if (source / INDEX).exists() else set())
        ):
            link(source / name, out / name)
        untied = False
        tell(1.0)
    else:
        untied = merge(source, adapter, out, dtype, tell, vectors).untied
    tokenizer = load_tokenizer(spec)
    write_config(source, out, dtype, untied)
    write_tokenizer(own if (own / "tokenizer_config.json").exists() else source, out, tokenizer)
    write_generation_config(source, out, read_json(source / "config.json"), tokenizer)
    copy_other(source, out)
    write_card(spec, out)


def write_adapter_folder(spec: Export, out: Path) -> None:
    """The adapter as PEFT loads it on the base, which is named as others find it."""
    own = Path(spec.model.folder)
    try:
        config = json.loads((own / "adapter_config.json").read_text())
    except (OSError, ValueError) as problem:
        raise JobError("adapter_invalid", f"adapter_config.json cannot be read: {problem}.") from problem
    if not (own / "adapter_model.safetensors").exists():
        raise JobError("adapter_invalid", "The adapter has no adapter_model.safetensors.")
    config = without_places(config) | {"base_model_name_or_path": spec.base.id, "inference_mode": True}
    write_json(out / "adapter_config.json", config)
    link(own / "adapter_model.safetensors", out / "adapter_model.safetensors")
    write_tokenizer(own if (own / "tokenizer_config.json").exists() else whole_folder(spec), out, load_tokenizer(spec))
    write_card(spec, out)
