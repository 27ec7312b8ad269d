"""Faster encoding of pictures on CPUs that multiply in bf16: the family's own vision tower, with other kernels beneath.

On a CPU, attention in bf16 took a third of the time, and operations between the products another third.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.model.model import replace_forward, restore_forward

NAME = "tower"
# In smaller windows (Qwen2.5-VL) a call takes longer than its product.
LEAST_PATCHES = 256


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function that transformers calls: query, key and value [tiles, heads, patches, size]; returns
    [tiles, patches, heads, size].

    One head at a time, whose products fit into the cache: 1.5 times as fast as torch's kernel for a CPU. Scores and
    weights are rounded to bf16, as in transformers' own attention without a kernel.
    """
    patches = query.shape[2]
    if attention_mask is not None or patches < LEAST_PATCHES or key.shape != query.shape:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    out = query.new_empty(query.shape[0], patches, query.shape[1], value.shape[3])
    none, scale = query.new_zeros(1, 1), query.shape[3] ** -0.5 if scaling is None else scaling
    for tile, head in ((tile, head) for tile in range(query.shape[0]) for head in range(query.shape[1])):
        scores = torch.addmm(none, query[tile, head], key[tile, head].T, beta=0, alpha=scale)
        out[tile, :, head] = torch.softmax(scores, dim=-1) @ value[tile, head]
    return out, None


AttentionInterface.register(NAME, attend)
# Without it transformers would drop the mask of padded patches.
AttentionMaskInterface.register(NAME, sdpa_mask)


def fits(tower: torch.nn.Module) -> bool:
    """Whether the tower computes in bf16 on a CPU."""
    weight = next(tower.parameters())
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16


@torch.no_grad()
def install(tower: torch.nn.Module) -> Callable[[], None]:
    """Makes a tower that `fits` faster until the function that it returns is called. Meanwhile its weights are in
    memory twice.
    """
    config = cast(Any, tower.config)
    before, config._attn_implementation = config._attn_implementation, NAME
    replaced = [module for module in tower.modules() if _pack(module)]
    for module in tower.modules():
        # SigLIP's blocks: the activation is computed while the product is in the cache.
        if hasattr(module, "fc1") and type(getattr(module, "activation_fn", None)).__name__ == "GELUTanh":
            _pack(module.get_submodule("fc1"), ("gelu", [], "tanh"))
            activation = module.get_submodule("activation_fn")
            replace_forward(activation, lambda activated: activated)
            replaced.append(activation)
    hooks = []
    if hasattr(tower, "embeddings"):
        # A convolution's result is transposed, and so would be every sum of the residual stream.
        embeddings = tower.get_submodule("embeddings")
        hooks.append(embeddings.register_forward_hook(lambda _module, _inputs, made: made.contiguous()))

    def undo() -> None:
        config._attn_implementation = before
        for module in replaced:
            restore_forward(module)
        for hook in hooks:
            hook.remove()

    return undo


def _pack(module: torch.nn.Module, after: tuple = ("none", [], "")) -> bool:
    """Replaces the forward pass of a linear layer by oneDNN's on weights in its own order. Returns whether it did."""
    if type(module) is not torch.nn.Linear:
        return False
    weight, bias = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach()), module.bias
    replace_forward(module, lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, bias, *after))
    return True
