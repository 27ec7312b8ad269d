"""Whether the files of a checkpoint are of one model, before anything is made of them: what reads them later believes
every number in them.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from trainer.model.dequantize import CONFIG, READABLE, cannot_be_read
from trainer.model.model import decoder_of
from trainer.model.skeleton import Skeleton
from trainer.model.tensors import INDEX
from trainer.runtime.errors import COMPARE, described, doing

PARTS = ("text_config", "vision_config", "audio_config", CONFIG)
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth")
TAKE_ITS_OWN = "Take the config.json of the model that it was made from."
UNKNOWN = "This version knows no architecture '{}' (model_type in config.json). Take a model of one that it knows."
OWN_PROGRAM = (
    "It brings programs of its own (auto_map), and no program of a checkpoint is run. Take a model whose architecture "
    "and tokenizer transformers has."
)


def require_config(folder: Path, config: dict[str, Any]) -> None:
    """Checks the configuration's own form, that its files are there, that it counts no more layers than they have
    tensors, and that transformers has its architecture. Raises RuntimeError with a reason for the user.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _wrong("architectures", 'a list, like ["LlamaForCausalLM"]', config)
    if not isinstance(config.get("model_type"), str):
        raise _wrong("model_type", "the name of an architecture", config)
    for name in PARTS:
        if name in config and not isinstance(config[name], dict) and (name == PARTS[0] or config[name] is not None):
            raise _wrong(name, "an object", config)
    parts = [config, *(config.get(name) or {} for name in PARTS[:-1])]
    for part in parts:
        method = part.get(CONFIG) and part[CONFIG].get("quant_method", "unknown")
        if method and method not in READABLE:
            raise RuntimeError(cannot_be_read(method))
    _require_shards(folder)
    count = sum(_count_tensors(file) for file in folder.glob("*.safetensors"))
    for part in parts:
        for name in LAYER_COUNTS:
            if isinstance(part.get(name), int) and not 0 <= part[name] <= count:
                raise _wrong(name, f"a count of at most the {count} tensors of its files", part)
    if config["model_type"] not in CONFIG_MAPPING:
        raise RuntimeError(OWN_PROGRAM if "auto_map" in config else UNKNOWN.format(config["model_type"]))
    try:
        AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as problem:
        raise RuntimeError(f"Its config.json cannot be used: {described(problem)}. {TAKE_ITS_OWN}") from problem


def require_weights(folder: Path) -> None:
    """Checks that the files have the tensors that the language model needs, of these sizes. Raises RuntimeError with a
    reason for the user.
    """
    try:
        skeleton = Skeleton(folder)
    except Exception as problem:
        # As where experts are missing that are one weight in memory.
        raise RuntimeError(
            f"Its weights are not what its config.json describes ({described(problem)}). {COMPARE}"
        ) from problem
    for name, stored, expected in skeleton.mismatched:
        raise RuntimeError(
            f"Its config.json and its weights are of different models: {name} is {list(stored)} in the files, and "
            f"{list(expected)} by config.json. {TAKE_ITS_OWN}"
        )
    missing = sorted(skeleton.missing & _language_weights(skeleton))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RuntimeError(
            f"Its weights are not whole: config.json needs {missing[0]}{more}, which no file has. Take all files of "
            "the model, and its own config.json."
        )


def _wrong(name: str, expected: str, part: dict[str, Any]) -> RuntimeError:
    value = json.dumps(part[name])[:60] if name in part else "missing"
    return RuntimeError(f"{name} in config.json must be {expected}, and is {value}. {TAKE_ITS_OWN}")


def _require_shards(folder: Path) -> None:
    """The files that the index names are there."""
    if not (folder / INDEX).exists():
        return
    with doing(f"Reading {INDEX}"):
        files: set[str] = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    missing = sorted(file for file in files if not (folder / file).is_file())
    if missing:
        raise RuntimeError(f"The checkpoint misses {', '.join(missing)}, which {INDEX} names. Add it to the folder.")


def _count_tensors(file: Path) -> int:
    with doing(f"Reading the tensors of {file.name}"), safe_open(file, "pt") as opened:
        return len(opened.keys())


def _language_weights(skeleton: Skeleton) -> set[str]:
    """The names of the weights that text passes. Some publishers leave out the parts that see or hear."""
    model: Any = skeleton.model
    own = {id(weight) for part in (decoder_of(model), model.get_output_embeddings()) for _, weight in _weights(part)}
    return {name for name, weight in _weights(model) if id(weight) in own}


def _weights(part: Any) -> list[tuple[str, torch.Tensor]]:
    if part is None:
        return []
    return [*part.named_parameters(remove_duplicate=False), *part.named_buffers(remove_duplicate=False)]
