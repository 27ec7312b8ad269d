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


def kernels_of(tensor: torch.Tensor) -> ModuleType:
    """Those for a tensor, where callers know that there are some."""
    kernels = kernels_for(tensor.device, tensor.dtype)
    assert kernels is not None, "parts are replaced only where there are kernels"
    return kernels


def _entered(
    kernels: ModuleType, norm: "Norm | None", x: torch.Tensor, added: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """x + added, what goes into a branch of it, and what `_entered_backward` needs beside that sum."""
    if norm:
        total, normed, inverse = kernels.add_norm(x, added, norm.weight, norm.epsilon)
        return total, normed, [inverse]
    total = x if added is None else kernels.add(x, added)
    rounded = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    kernels.round_into(total, rounded)
    return total, rounded, []


def _entered_backward(
    kernels: ModuleType,
    norm: "Norm | None",
    gradient: torch.Tensor,
    total_gradient: torch.Tensor,
    total: torch.Tensor,
    saved: list[torch.Tensor],
    rounded: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of x from those of the branch (bfloat16) and of the sum (float32), also written into `rounded`."""
    if norm:
        return kernels.add_norm_backward(gradient, total_gradient, total, norm.weight, *saved, rounded)
    out = kernels.add(total_gradient, gradient)
    if rounded is not None:
        kernels.round_into(out, rounded)
    return out


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
        query_scale: torch.Tensor | None,
        *_parameters: torch.Tensor,
    ) -> torch.Tensor:
        kernels, attention = layer.kernels, layer.kernel_attention
        assert kernels, "FastLayer uses this where it has some"
        _, normed, input_saved = _entered(kernels, layer.input_norm, x)
        states, qkv_saved = layer.qkv.forward(normed)
        head_saved = []
        for part in layer.head_norms:
            raw = states[:, part.start : part.end].clone()
            out = states[:, part.start : part.end]
            _, head_inverse = kernels.norm(raw, part.norm.weight, part.norm.epsilon, out=out)
            head_saved += [raw, head_inverse]
        if layer.rotation.size:
            kernels.rotate(states, cos, sin, layer.turned, **layer.rotation_options)
        if query_scale is not None:
            states[:, : layer.heads * layer.head_size] *= query_scale
        attended, attention_saved = attention.forward(states, layout)
        mixed, out_saved = layer.out.forward(attended)
        mixed, mixed_saved = _normed(kernels, layer.mixed_norm, mixed)
        if layer.multiplier != 1:
            mixed = mixed * layer.multiplier
        middle, post_normed, mlp_saved = _entered(kernels, layer.mlp_norm, x, mixed)
        gate_up, gate_up_saved = layer.gate_up.forward(post_normed)
        product = kernels.gated(gate_up, layer.down.inputs, **layer.activation)
        down_output, down_saved = layer.down.forward(product)
        added, added_saved = _normed(kernels, layer.added_norm, down_output)
        if layer.multiplier != 1:
            added = added * layer.multiplier
        parts = [attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved]
        parts += [head_saved, mixed_saved, added_saved, input_saved, mlp_saved]
        ctx.save_for_backward(
            *(x, states, attended, middle, gate_up, cos, sin, query_scale),
            *(saved for part in parts for saved in part),
        )
        ctx.layer, ctx.layout, ctx.counts = layer, layout, [len(part) for part in parts]
        return kernels.add(middle, added)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, (x, states, attended, middle, gate_up, cos, sin, query_scale, *saved) = ctx.layer, ctx.saved_tensors
        kernels, attention, parts = layer.kernels, layer.kernel_attention, iter(saved)
        attention_saved, qkv_saved, out_saved, gate_up_saved, down_saved, *norms_saved = (
            [next(parts) for _ in range(n)] for n in ctx.counts
        )
        head_saved, mixed_saved, added_saved, input_saved, mlp_saved = norms_saved
        tokens, gradient = len(x), gradient.contiguous()

        down_output = layer.down.gradient(tokens)
        kernels.round_into(gradient, down_output)
        if layer.multiplier != 1:
            down_output[:, : layer.down.width] *= layer.multiplier
        _normed_backward(kernels, layer.added_norm, down_output, added_saved)
        down_gradients = layer.down.backward(down_output, down_saved)
        joint = layer.gate_up.gradient(tokens)
        product_gradient = layer.down.input_gradient(down_output)
        kernels.gated_backward(product_gradient, gate_up, joint, **layer.activation)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        mixed = layer.out.gradient(tokens)
        entered_gradient = layer.gate_up.input_gradient(joint)
        gradient = _entered_backward(
            *(kernels, layer.mlp_norm, entered_gradient, gradient, middle, mlp_saved), rounded=mixed
        )
        if layer.multiplier != 1:
            mixed[:, : layer.out.width] *= layer.multiplier
        _normed_backward(kernels, layer.mixed_norm, mixed, mixed_saved)

        out_gradients = layer.out.backward(mixed, out_saved)
        joint = layer.qkv.gradient(tokens)
        out_gradient = layer.out.input_gradient(mixed)
        attention.backward(out_gradient, states, attended, attention_saved, ctx.layout, joint)
        if query_scale is not None:
            joint[:, : layer.heads * layer.head_size] *= query_scale
        if layer.rotation.size:
            kernels.rotate(joint, cos, sin, layer.turned, undo=True, **layer.rotation_options)
        for index, part in enumerate(layer.head_norms):
            raw, head_inverse = head_saved[2 * index : 2 * index + 2]
            kernels.norm_backward(joint[:, part.start : part.end], raw, part.norm.weight, head_inverse)
        qkv_gradients = layer.qkv.backward(joint, qkv_saved)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            entered_gradient = layer.qkv.input_gradient(joint)
            x_gradient = _entered_backward(kernels, layer.input_norm, entered_gradient, gradient, x, input_saved)
        parameters = *qkv_gradients, *out_gradients, *gate_up_gradients, *down_gradients
        return x_gradient, None, None, None, None, None, *parameters
