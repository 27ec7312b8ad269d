"""Makes the exported files: a folder for transformers and vLLM, a GGUF file, or an ONNX graph."""

import json
import shutil
from pathlib import Path

from trainer.data.sight import PROCESSOR_FILES
from trainer.export import importance, onnx
from trainer.export.card import write_card
from trainer.export.folder import (
    copy_other,
    read_json,
    without_local_keys,
    write_config,
    write_generation_config,
    write_json,
    write_tokenizer,
)
from trainer.export.gguf_file import adapter_file, convert, link_or_copy, type_of
from trainer.export.reference import checkpoint_folder, load_tokenizer
from trainer.export.spec import DTYPES, Export, StageReport
from trainer.model.adapter_changes import read_adapter
from trainer.model.experts import write_for_peft
from trainer.model.merge import merge
from trainer.model.skeleton import Skeleton
from trainer.model.tensors import FLOATING, INDEX, read_checkpoint
from trainer.runtime.errors import JobError
from trainer.runtime.files import sync_tree
from trainer.runtime.protocol import Report


def write_output(spec: Export, folder: Path, report: StageReport) -> Path | None:
    """Writes under `folder/out` and returns the path. Calls `report(stage, done)` with the progress.

    For ONNX it makes only the graph and returns null; `finish` (trainer/export/onnx.py) makes the folder.
    """
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if spec.format == "onnx":
        return _write_onnx_graph(spec, folder, report)
    output = {"huggingface": _write_hugging_face, "gguf": _write_gguf}[spec.format](spec, folder, out, report)
    sync_tree(output)
    return output


def _write_hugging_face(spec: Export, _folder: Path, out: Path, report: StageReport) -> Path:
    output = out / spec.folder_name
    output.mkdir()
    if spec.adapter_alone:
        write_adapter_folder(spec, output)
    else:
        write_checkpoint_folder(
            spec, output, DTYPES.get(spec.quantization or ""), True, lambda done: report("merge", done)
        )
    return output


def _write_gguf(spec: Export, folder: Path, out: Path, report: StageReport) -> Path:
    if spec.adapter_alone:
        return adapter_file(spec, out)
    kind = type_of(spec, checkpoint_folder(spec))
    work = _work(folder)
    # llama.cpp's rule: matrices in the file's type, norms and biases unchanged.
    write_checkpoint_folder(spec, work, kind, False, lambda done: report("merge", done))
    report("convert", 0.0)
    file = out / f"{spec.name}-{kind}.gguf"
    convert(spec, work, file, kind)
    if spec.importance:
        importance.for_file(Path(spec.importance), file, folder / "importance.safetensors")
    shutil.rmtree(work)
    report("convert", 1.0)
    return file


def _write_onnx_graph(spec: Export, folder: Path, report: StageReport) -> None:
    work = _work(folder)
    write_checkpoint_folder(spec, work, "F32", True, lambda done: report("merge", done))
    report("convert", 0.0)
    onnx.build(work, folder / "graph", spec.quantization, spec.threads, lambda done: report("convert", done / 2))


def _work(folder: Path) -> Path:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return work


def write_checkpoint_folder(spec: Export, out: Path, dtype: str | None, vectors: bool, report: Report) -> None:
    """Writes a whole checkpoint for transformers: the model, or its adapter merged into its base.

    `dtype`, `vectors`: as for `merge`.
    """
    source = checkpoint_folder(spec)
    model_folder = Path(spec.model.folder)
    adapter = read_adapter(model_folder, source) if spec.model.kind == "adapter" else None
    entries = read_checkpoint(source)
    kinds = {entry.dtype for entry in entries.values() if entry.dtype in FLOATING}
    if adapter is None and (dtype is None or kinds == {dtype}):
        for name in sorted(
            {entry.file.name for entry in entries.values()} | ({INDEX} if (source / INDEX).exists() else set())
        ):
            link_or_copy(source / name, out / name)
        untied = False
        report(1.0)
    else:
        untied = merge(source, adapter, out, dtype, report, vectors).untied
    tokenizer = load_tokenizer(spec)
    write_config(source, out, dtype, untied)
    write_tokenizer(model_folder if (model_folder / "tokenizer_config.json").exists() else source, out, tokenizer)
    write_generation_config(source, out, read_json(source / "config.json"), tokenizer)
    copy_other(source, out)
    write_card(spec, out)


def write_adapter_folder(spec: Export, out: Path) -> None:
    """Writes the adapter for PEFT, with the base's public name. Raises JobError("adapter_invalid") if a file is
    missing.
    """
    model_folder = Path(spec.model.folder)
    try:
        config = json.loads((model_folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as problem:
        raise JobError("adapter_invalid", f"adapter_config.json cannot be read: {problem}.") from problem
    if not (model_folder / "adapter_model.safetensors").exists():
        raise JobError("adapter_invalid", "The adapter has no adapter_model.safetensors.")
    config = without_local_keys(config) | {"base_model_name_or_path": spec.base.id, "inference_mode": True}
    write_json(out / "adapter_config.json", config)
    weights = model_folder / "adapter_model.safetensors"
    if not write_for_peft(weights, Skeleton(checkpoint_folder(spec)), out / weights.name):
        link_or_copy(weights, out / weights.name)
    write_tokenizer(
        model_folder if (model_folder / "tokenizer_config.json").exists() else checkpoint_folder(spec),
        out,
        load_tokenizer(spec),
    )
    copy_other(checkpoint_folder(spec), out, PROCESSOR_FILES)
    write_card(spec, out)
