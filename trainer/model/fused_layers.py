"""A decoder layer of the Llama family as one autograd function on the trainer's kernels, for a CPU or a GPU. The
mathematics is that of `fast_layers`: matrix products in bfloat16, a float32 residual stream.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from trainer.data.layout import Layout
from trainer.model import gpu_kernels, kernels

if TYPE_CHECKING:
    from trainer.model.fast_layers import FastLayer


def kernels_for(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The trainer's kernels that compute on this device in this precision, if any do."""
    return next((each for each in (kernels, gpu_kernels) if each.available(device, dtype)), None)


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
        kernels.rotate(states, cos, sin, layer.rotated)
        attended, attention_saved = attention.forward(states, layout)
        mixed, out_saved = layer.out.forward(attended)
        norm = layer.post_attention_norm
        middle, post_normed, post_inverse = kernels.add_norm(x, mixed, norm.weight, norm.epsilon)
        gate_up, gate_up_saved = layer.gate_up.forward(post_normed)
        product = kernels.gated(gate_up, layer.down.inputs)
        down_output, down_saved = layer.down.forward(product)
        parts = [attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved]
        ctx.save_for_backward(
            *(x, inverse, states, attended, middle, post_inverse, gate_up),
            *(cos, sin, *(saved for part in parts for saved in part)),
        )
        ctx.layer, ctx.layout, ctx.counts = layer, layout, [len(part) for part in parts]
        return kernels.add(middle, down_output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, (x, inverse, states, attended, middle, post_inverse, *rest) = ctx.layer, ctx.saved_tensors
        gate_up, cos, sin, *saved = rest
        kernels, attention, parts = layer.kernels, layer.kernel_attention, iter(saved)
        attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved = (
            [next(parts) for _ in range(n)] for n in ctx.counts
        )
        tokens, gradient = len(x), gradient.contiguous()

        down_output = layer.down.gradient(tokens)
        kernels.round_into(gradient, down_output)
        down_gradients = layer.down.backward(down_output, down_saved)
        joint = layer.gate_up.gradient(tokens)
        kernels.gated_backward(layer.down.input_gradient(down_output), gate_up, joint)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        mixed = layer.out.gradient(tokens)
        weight, normed_gradient = layer.post_attention_norm.weight, layer.gate_up.input_gradient(joint)
        gradient = kernels.add_norm_backward(normed_gradient, gradient, middle, weight, post_inverse, mixed)

        out_gradients = layer.out.backward(mixed, out_saved)
        joint = layer.qkv.gradient(tokens)
        out_gradient = layer.out.input_gradient(mixed)
        attention.backward(out_gradient, states, attended, attention_saved, ctx.layout, joint)
        kernels.rotate(joint, cos, sin, layer.rotated, undo=True)
        qkv_gradients = layer.qkv.backward(joint, qkv_saved)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            weight, normed_gradient = layer.input_norm.weight, layer.qkv.input_gradient(joint)
            x_gradient = kernels.add_norm_backward(normed_gradient, gradient, x, weight, inverse)
        parameters = *qkv_gradients, *out_gradients, *gate_up_gradients, *down_gradients
        return x_gradient, None, None, None, None, *parameters
