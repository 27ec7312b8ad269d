"""Which layers of a base an adapter can change, by what they are: no list of families."""

from pathlib import Path
from typing import Any

import torch

from trainer.model.adapter_gguf import Pair, convert, library, open_base
from trainer.runtime.errors import JobError

# Parts of names of the engine's weights that llama.cpp multiplies without an adapter's product: one there would be
# loaded and do nothing.
DEAF = ("altup_", "latent", "attn_q_a.", "attn_q_b.", "attn_kv_a_mqa.", "attn_kv_b.", "attn_k_b.", "attn_v_b.")
# In graphs of latent attention, the query too.
DEAF_OF_LATENT = ("attn_q.",)
# What chooses experts, or how much of them counts, is left as it was trained.
ROUTING = ("gate_inp",)


def linear_modules(folder: Path, converters: Path) -> list[str]:
    """Names of the linear layers in the language model of the checkpoint in `folder` that the engine serves with an
    adapter, in their order. Reads its configuration and the names of its tensors, not its weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    sees = hasattr(config, "vision_config") or config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    with torch.device("meta"):
        model: Any = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(config)
    inside = {id(module) for module in model.get_decoder().modules()}
    layers = {
        name: module
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and id(module) in inside and ".layers." in name
    }
    usable: dict[str, bool] = {}
    # Layers of one class and shape are converted alike: a large base has hundreds.
    looked_at = set[tuple[object, ...]]()
    with library(converters) as conversion, torch.inference_mode():
        models = [open_base(conversion, folder, folder / "none.gguf") for _ in range(3)]
        for name, layer in layers.items():
            leaf, parent = name.rpartition(".")[2], model.get_submodule(name.rpartition(".")[0])
            kind = (leaf, type(parent), layer.weight.shape)
            if usable.get(leaf, True) and kind not in looked_at:
                looked_at.add(kind)
                usable[leaf] = not _is_read_past(parent, leaf) and _is_heard(models, name, layer)
    moved = _moved_by_peft(config.model_type)
    return [leaf for leaf, fits in usable.items() if fits and leaf not in moved]


def _is_read_past(parent: torch.nn.Module, leaf: str) -> bool:
    """Whether fused kernels read the layer's weight and never call the layer: in Mamba2's, which alone has a D."""
    return leaf == "out_proj" and hasattr(parent, "D")


def _is_heard(models: list[Any], name: str, layer: torch.nn.Linear) -> bool:
    """Whether all that the layer becomes in the engine takes an adapter."""
    pair = Pair(torch.zeros(1, layer.in_features), torch.zeros(layer.out_features, 1))
    try:
        names = convert(models, {f"{name}.weight": pair})
    except JobError:
        return False
    latent = "kv_lora_rank" in models[0].hparams
    deaf = (*DEAF, *ROUTING, *(DEAF_OF_LATENT if latent else ()))
    return not any(part in target for target in names for part in deaf)


def _moved_by_peft(family: str) -> set[str]:
    """Names that PEFT takes for those of experts in this family, although other layers have them too."""
    from peft.utils import transformers_weight_conversion as conversion

    pattern, moved = conversion._MODEL_TO_CONVERSION_PATTERN.get(family), conversion._MOE_TARGET_MODULE_MAPPING
    return set(moved[pattern]) if pattern in moved else set()
