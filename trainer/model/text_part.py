"""Checkpoints with parts for which transformers needs a package that is not installed, as Gemma 3n's tower: their
language model alone is kept.
"""

import json
import re
from pathlib import Path
from typing import Any, cast

import torch

from trainer.model.load import class_for
from trainer.model.tensors import PlannedTensor, as_it_is, read_checkpoint, replace_checkpoint

# What names of the language model's weights begin with, beside other parts: as published, and as transformers saves.
PREFIXES = ("model.language_model.", "language_model.model.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
# Fields of the whole model that its language model needs as well.
SHARED = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype")


def keep_text_if_needed(folder: Path) -> str | None:
    """Rewrites the checkpoint as one of its language model if transformers lacks a package for another part. Returns
    why, as a part of a sentence; None if it was left as it is.
    """
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    try:
        with torch.device("meta"):
            class_for(config).from_config(config)
    except ImportError as problem:
        if _keep_text(folder, config):
            package = re.search(r"requires the (.+?) library", str(problem))
            return f"transformers needs {package[1] if package else 'another package'} to load the part that does"
    except Exception:
        # What is wrong with it is said where it is read.
        return None
    return None


def _keep_text(folder: Path, config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    if type(text) is type(config) or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return False
    entries = read_checkpoint(folder)
    planned = {
        name: PlannedTensor(entry.dtype, entry.shape, as_it_is(entry))
        for stored, entry in entries.items()
        if (name := _name_in_text(stored))
    }
    replace_checkpoint(folder, entries, planned)
    file = folder / "config.json"
    whole = json.loads(file.read_text())
    architecture = cast(type, MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]).__name__
    shared = {name: whole[name] for name in SHARED if name in whole}
    fields = {**shared, **whole["text_config"], "architectures": [architecture]}
    file.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n")
    return True


def _name_in_text(stored: str) -> str | None:
    if stored in HEADS:
        return HEADS[0]
    return next((f"model.{stored.removeprefix(prefix)}" for prefix in PREFIXES if stored.startswith(prefix)), None)
