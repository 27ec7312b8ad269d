"""A decoder layer of `fast_layers` as one autograd function on the trainer's kernels, for a CPU or a GPU. The
mathematics is that of `fast_layers`: matrix products in bfloat16, a float32 residual stream.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from trainer.data.layout import Layout
from trainer.model import gpu_kernels, kernels

if TYPE_CHECKING:
    from trainer.model.fast_layers import FastLayer, Norm


def kernels_for(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The trainer's kernels that compute on this device in this precision, if any do."""
    return next((each for each in (kernels, gpu_kernels) if each.available(device, dtype)), None)


def _normed(kernels: ModuleType, norm: "Norm | None", x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What a branch adds to the residual stream, and what `_normed_backward` needs."""
    if not norm:
        return x, []
    normed, inverse = kernels.norm(x, norm.weight[None], norm.epsilon)
    return normed, [x, inverse]


def _normed_backward(
    kernels: ModuleType, norm: "Norm | None", gradient: torch.Tensor, saved: list[torch.Tensor]
) -> None:
    if norm:
        x, inverse = saved
        kernels.norm_backward(gradient, x, norm.weight[None], inverse)


class FusedLayer(torch.autograd.Function):
    """Residual stream float32 [tokens, width] to the residual stream after the layer."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        layer: "FastLayer",
        layout: Layout,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *_parameters: torch.Tensor,
    ) -> torch.Tensor:
        kernels, attention = layer.kernels, layer.kernel_attention
        assert kernels, "FastLayer uses this where it has some"
        _, normed, inverse = kernels.add_norm(x, None, layer.input_norm.weight, layer.input_norm.epsilon)
        states, qkv_saved = layer.qkv.forward(normed)
        head_saved = []
        if norm := layer.head_norm:
            raw = states[:, : layer.turned * layer.head_size].clone()
            _, head_inverse = kernels.norm(raw, norm.weight, norm.epsilon, out=states)
            head_saved = [raw, head_inverse]
        if layer.rotates:
            kernels.rotate(states, cos, sin, layer.turned)
        attended, attention_saved = attention.forward(states, layout)
        mixed, out_saved = layer.out.forward(attended)
        mixed, mixed_saved = _normed(kernels, layer.mixed_norm, mixed)
        norm = layer.mlp_norm
        middle, post_normed, post_inverse = kernels.add_norm(x, mixed, norm.weight, norm.epsilon)
        gate_up, gate_up_saved = layer.gate_up.forward(post_normed)
        product = kernels.gated(gate_up, layer.down.inputs, **layer.activation)
        down_output, down_saved = layer.down.forward(product)
        added, added_saved = _normed(kernels, layer.added_norm, down_output)
        parts = [attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved]
        parts += [head_saved, mixed_saved, added_saved]
        ctx.save_for_backward(
            *(x, inverse, states, attended, middle, post_inverse, gate_up),
            *(cos, sin, *(saved for part in parts for saved in part)),
        )
        ctx.layer, ctx.layout, ctx.counts = layer, layout, [len(part) for part in parts]
        return kernels.add(middle, added)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, (x, inverse, states, attended, middle, post_inverse, *rest) = ctx.layer, ctx.saved_tensors
        gate_up, cos, sin, *saved = rest
        kernels, attention, parts = layer.kernels, layer.kernel_attention, iter(saved)
        attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved, head_saved, mixed_saved, added_saved = (
            [next(parts) for _ in range(n)] for n in ctx.counts
        )
        tokens, gradient = len(x), gradient.contiguous()

        down_output = layer.down.gradient(tokens)
        kernels.round_into(gradient, down_output)
        _normed_backward(kernels, layer.added_norm, down_output, added_saved)
        down_gradients = layer.down.backward(down_output, down_saved)
        joint = layer.gate_up.gradient(tokens)
        product_gradient = layer.down.input_gradient(down_output)
        kernels.gated_backward(product_gradient, gate_up, joint, **layer.activation)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        mixed = layer.out.gradient(tokens)
        weight, normed_gradient = layer.mlp_norm.weight, layer.gate_up.input_gradient(joint)
        gradient = kernels.add_norm_backward(normed_gradient, gradient, middle, weight, post_inverse, mixed)
        _normed_backward(kernels, layer.mixed_norm, mixed, mixed_saved)

        out_gradients = layer.out.backward(mixed, out_saved)
        joint = layer.qkv.gradient(tokens)
        out_gradient = layer.out.input_gradient(mixed)
        attention.backward(out_gradient, states, attended, attention_saved, ctx.layout, joint)
        if layer.rotates:
            kernels.rotate(joint, cos, sin, layer.turned, undo=True)
        if layer.head_norm:
            raw, head_inverse = head_saved
            kernels.norm_backward(joint, raw, layer.head_norm.weight, head_inverse)
        qkv_gradients = layer.qkv.backward(joint, qkv_saved)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            weight, normed_gradient = layer.input_norm.weight, layer.qkv.input_gradient(joint)
            x_gradient = kernels.add_norm_backward(normed_gradient, gradient, x, weight, inverse)
        parameters = *qkv_gradients, *out_gradients, *gate_up_gradients, *down_gradients
        return x_gradient, None, None, None, None, *parameters
