"""Which weights of a base an adapter can change, by what they are: no list of families."""

from pathlib import Path
from typing import Any, cast

import torch

from trainer.model.adapter_gguf import library, moves_of, open_base
from trainer.model.experts import expert_modules, stacked
from trainer.model.model import decoder_of
from trainer.model.skeleton import Skeleton
from trainer.runtime.errors import JobError

# Parts of names of the engine's weights that llama.cpp multiplies without an adapter's product: one there would be
# loaded and do nothing.
DEAF = ("altup_", "latent", "attn_q_a.", "attn_q_b.", "attn_kv_a_mqa.", "attn_kv_b.", "attn_k_b.", "attn_v_b.")
# In graphs of latent attention, the query too.
DEAF_OF_LATENT = ("attn_q.",)
# What chooses experts, or how much of them counts, is left as it was trained.
ROUTING = ("gate_inp",)


def targets_of(folder: Path, converters: Path, merged: bool = False) -> dict[str, Any]:
    """What an adapter of the checkpoint in `folder` can change as the engine serves it: unmerged, or `merged`. Reads
    its configuration and the names of its tensors, not its weights.

    `linear_modules`: names of the linear layers in the language model, in their order. `expert_weights`: of a mixture
    whose experts can be changed, how many weights a rank takes for all of them.
    """
    skeleton = Skeleton(folder)
    model = skeleton.loaded
    inside = {id(module) for module in cast(torch.nn.Module, decoder_of(model)).modules()}
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
                shape = layer.weight.shape
                usable[leaf] = not _is_read_past(parent, leaf) and _is_heard(
                    models, skeleton, {f"{name}.weight": shape}, merged
                )
        mixtures = list(expert_modules(model))
        heard = [_is_heard(models, skeleton, _shapes(name, module), merged) for name, module in mixtures[:1]]
    weights = sum(
        shape.numel() // max(shape[-2:]) // min(shape[-2:]) * (shape[-2] + shape[-1])
        for name, module in mixtures
        for shape in _shapes(name, module).values()
    )
    return {
        "linear_modules": [leaf for leaf, fits in usable.items() if fits],
        **({"expert_weights": weights} if heard == [True] else {}),
    }


def _shapes(name: str, module: torch.nn.Module) -> dict[str, torch.Size]:
    """The shapes of a mixture's experts, by their names."""
    return {f"{name}.{weight}": getattr(module, weight).shape for weight in stacked(module)}


def _is_read_past(parent: torch.nn.Module, leaf: str) -> bool:
    """Whether fused kernels read the layer's weight and never call the layer: in Mamba2's, which alone has a D."""
    return leaf == "out_proj" and hasattr(parent, "D")


def _is_heard(models: list[Any], skeleton: Skeleton, shapes: dict[str, torch.Size], merged: bool) -> bool:
    """Whether all that these weights become in the engine takes an adapter, or is to be trained at all if `merged`."""
    try:
        names = moves_of(models, {name: tuple(shape) for name, shape in shapes.items()}, skeleton)
    except JobError:
        return merged
    latent = "kv_lora_rank" in models[0].hparams
    deaf = () if merged else (*DEAF, *(DEAF_OF_LATENT if latent else ()))
    return not any(part in target for target in names for part in (*deaf, *ROUTING))
