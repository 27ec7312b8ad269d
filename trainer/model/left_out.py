"""What transformers does not load of a checkpoint, so that what it saves has none: layers that predict a further token
(MTP), and weights of layers that use others' instead, as some of Gemma 3n's use the keys of earlier ones.
"""

import json
from pathlib import Path
from typing import Any

from trainer.model.tensors import INDEX, PlannedTensor, as_it_is, read_checkpoint, write_file
from trainer.runtime.converters import PREDICTION_LAYERS, prediction_tensors


def copy_left_out(base: Path, folder: Path) -> None:
    """Adds those of the checkpoint in `base` to the one that transformers saved in `folder`, with the fields of the
    configuration that count layers that predict.
    """
    saved, original = read_checkpoint(folder), read_checkpoint(base)
    modules = {_module_of(name) for name in saved}
    replaced = {name for name in original if _module_of(name) in modules - {None} and name.endswith(".weight")}
    names = (set(prediction_tensors(base)) | replaced) - saved.keys()
    added = {name: entry for name, entry in original.items() if name in names}
    if not added:
        return
    files = {entry.file for entry in saved.values()}
    weight_map, new = {name: entry.file.name for name, entry in saved.items()}, "model-mtp.safetensors"
    if len(files) == 1:
        # Readers look for the name of a checkpoint's only file first, and then for no other.
        file = files.pop().rename(folder / "model-00001-of-00002.safetensors")
        weight_map, new = dict.fromkeys(saved, file.name), "model-00002-of-00002.safetensors"
    planned = {name: PlannedTensor(entry.dtype, entry.shape, as_it_is(entry)) for name, entry in added.items()}
    size = sum(entry.bytes for entry in saved.values()) + sum(write_file(folder / new, planned))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map | dict.fromkeys(added, new)}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    _copy_counts(base / "config.json", folder / "config.json")


def _module_of(name: str) -> str | None:
    """The module in a decoder's layer whose part has this weight; None outside of layers."""
    module = name.rpartition(".")[0].rpartition(".")[0]
    return module if ".layers." in module else None


def _copy_counts(source: Path, target: Path) -> None:
    original, config = json.loads(source.read_text()), json.loads(target.read_text())
    parts: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (original, config),
        (original.get("text_config") or {}, config.get("text_config") or {}),
    ]
    for fields, own in parts:
        own.update({name: fields[name] for name in PREDICTION_LAYERS if name in fields})
    target.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
