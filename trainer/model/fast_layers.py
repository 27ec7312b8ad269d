"""Decoder layers of the Llama family in two autograd functions around attention, with gradients written by hand.

The same mathematics as transformers' layers with peft's adapters, in a fifth of the operations: with a few hundred
tokens a step (small batches of short conversations), launching an operation costs as much as computing it. The residual
stream is float32 in every precision.
"""

from typing import Any, TypeGuard

import torch
from torch.nn.functional import silu

from trainer.data.layout import Layout
from trainer.model.attention import Rule, attend
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward
from trainer.model.fast_lora import LinearGroup, copies_of, is_plain
from trainer.model.fused_layers import FusedLayer, kernels_for
from trainer.model.model import DecoderLayer, Model, RmsNorm, replace_forward

# Layers that are exactly norm, attention, residual, norm, gated MLP, residual.
FAMILY = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen2VLDecoderLayer",
    "Qwen2_5_VLDecoderLayer",
}


class Norm:
    """RMS norm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv 1910.07467)."""

    def __init__(self, module: RmsNorm) -> None:
        self.weight, self.epsilon = module.weight.detach().float(), module.variance_epsilon

    def forward(self, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalizes x [tokens, width] into `dtype`; also returns the inverse root mean square [tokens, 1]."""
        inverse = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(self.epsilon).rsqrt_()[:, None]
        return (x * inverse).mul_(self.weight).to(dtype), inverse

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        """The gradient of x [tokens, width] from that of the norm, with what `forward` was given and returned."""
        gradient = gradient * self.weight
        direction = x * inverse
        along = torch.linalg.vecdot(gradient, direction).div_(x.shape[-1])[:, None]
        return gradient.addcmul_(direction, along, value=-1).mul_(inverse)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, undo: bool = False) -> None:
    """Applies rotary embeddings (arXiv 2104.09864) to x [tokens, heads, size], into `out`. cos and sin [tokens, 1, size
    / 2]. `undo` applies the inverse rotation.
    """
    one, two = x.chunk(2, dim=-1)
    out_one, out_two = out.chunk(2, dim=-1)
    sign = -1 if undo else 1
    torch.mul(one, cos, out=out_one)
    out_one.addcmul_(two, sin, value=-sign)
    torch.mul(two, cos, out=out_two)
    out_two.addcmul_(one, sin, value=sign)


class BeforeAttention(torch.autograd.Function):
    """Residual stream [tokens, width] to q, k and v in one tensor of attention's padded rows [rows, heads + 2 key
    heads, size].
    """

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
        normed, inverse = layer.input_norm.forward(x, layer.dtype)
        joint, saved = layer.qkv.forward(normed)
        states = joint[:, : layer.qkv.width].unflatten(1, (-1, layer.head_size)).to(layer.attention_dtype)
        out = torch.empty_like(states, memory_format=torch.contiguous_format)
        rotate(states[:, : layer.rotated], cos, sin, out[:, : layer.rotated])
        out[:, layer.rotated :] = states[:, layer.rotated :]
        ctx.save_for_backward(x, inverse, cos, sin, *saved)
        ctx.layer, ctx.layout = layer, layout
        return scatter(out, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, inverse, cos, sin, *saved), layer = ctx.saved_tensors, ctx.layer
        joint = layer.qkv.gradient(len(x))
        states = joint[:, : layer.qkv.width].unflatten(1, (-1, layer.head_size))
        token_gradient = scatter_backward(gradient, ctx.layout)
        if states.dtype == token_gradient.dtype:
            rotate(token_gradient[:, : layer.rotated], cos, sin, states[:, : layer.rotated], undo=True)
        else:
            unrotated = token_gradient.new_empty(len(x), layer.rotated, layer.head_size)
            rotate(token_gradient[:, : layer.rotated], cos, sin, unrotated, undo=True)
            states[:, : layer.rotated] = unrotated
        states[:, layer.rotated :] = token_gradient[:, layer.rotated :]
        parameters = layer.qkv.backward(joint, saved)
        x_gradient = (
            layer.input_norm.backward(layer.qkv.input_gradient(joint), x, inverse) if ctx.needs_input_grad[0] else None
        )
        return x_gradient, None, None, None, None, *parameters


class AfterAttention(torch.autograd.Function):
    """Residual stream x [tokens, width] and attention's result [rows, heads, size] to the residual stream after the
    layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        rows: torch.Tensor,
        layer: "FastLayer",
        layout: Layout,
        *_parameters: torch.Tensor,
    ) -> torch.Tensor:
        attended = gather(rows, layout).flatten(1).to(layer.dtype)
        mixed, out_saved = layer.out.forward(attended)
        middle = x + mixed[:, : layer.out.width]
        normed, inverse = layer.post_attention_norm.forward(middle, layer.dtype)
        gate_up, gate_up_saved = layer.gate_up.forward(normed)
        gate, up = layer.gate_up.outputs_of(gate_up)
        product = silu(gate).mul_(up)
        down_output, down_saved = layer.down.forward(product)
        ctx.save_for_backward(middle, inverse, gate_up, *out_saved, *gate_up_saved, *down_saved)
        ctx.layer, ctx.layout, ctx.counts = layer, layout, (len(out_saved), len(gate_up_saved))
        return middle + down_output[:, : layer.down.width]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (middle, inverse, gate_up, *saved), layer = ctx.saved_tensors, ctx.layer
        first, second = ctx.counts
        out_saved, gate_up_saved, down_saved = saved[:first], saved[first : first + second], saved[first + second :]
        tokens = len(middle)

        down_output = layer.down.gradient(tokens)
        down_output[:, : layer.down.width] = gradient
        down_gradients = layer.down.backward(down_output, down_saved)
        product_gradient = layer.down.input_gradient(down_output)

        gate, up = layer.gate_up.outputs_of(gate_up)
        joint = layer.gate_up.gradient(tokens)
        gate_gradient, up_gradient = layer.gate_up.outputs_of(joint)
        torch.mul(product_gradient, silu(gate), out=up_gradient)
        torch.ops.aten.silu_backward.grad_input(product_gradient.mul_(up), gate, grad_input=gate_gradient)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        middle_gradient = layer.post_attention_norm.backward(layer.gate_up.input_gradient(joint), middle, inverse).add_(
            gradient
        )

        mixed = layer.out.gradient(tokens)
        mixed[:, : layer.out.width] = middle_gradient
        out_gradients = layer.out.backward(mixed, out_saved)
        attended_gradient = (
            layer.out.input_gradient(mixed).unflatten(1, (-1, layer.head_size)).to(layer.attention_dtype)
        )
        return (
            middle_gradient,
            gather_backward(attended_gradient, ctx.layout),
            None,
            None,
            *out_gradients,
            *gate_up_gradients,
            *down_gradients,
        )


class FastLayer:
    """The parts of a decoder layer. Replaces the forward pass of transformers' layer."""

    def __init__(self, layer: DecoderLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_size, self.scaling = attention.head_dim, attention.scaling
        self.input_norm, self.post_attention_norm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        self.qkv = LinearGroup([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = LinearGroup([attention.o_proj])
        self.gate_up = LinearGroup([mlp.gate_proj, mlp.up_proj])
        self.down = LinearGroup([mlp.down_proj])
        self.groups = self.qkv, self.out, self.gate_up, self.down
        self.dtype = self.qkv.dtype
        # The CPU's attention kernel is much slower in bf16 than in float32 (backward pass: 8.4 ms against 0.8 at 300
        # tokens).
        self.attention_dtype = torch.float32 if self.qkv.device.type == "cpu" else self.dtype
        self.heads, self.key_heads = self.qkv.outputs[0] // self.head_size, self.qkv.outputs[1] // self.head_size
        self.rotated = self.heads + self.key_heads
        # Set on each layer where layers differ; Mistral has it in the configuration.
        self.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self.kernels = kernels_for(self.qkv.device, self.dtype)
        if self.kernels:
            shape = self.heads, self.key_heads, self.head_size, self.scaling, self.window
            self.kernel_attention = self.kernels.Attention(*shape)
        replace_forward(layer, self.forward)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        **_: object,
    ) -> torch.Tensor:
        """The layer's residual stream, float32 [1, tokens, width], as transformers' layer computes it. Position
        embeddings: cos and sin [1, tokens, size].
        """
        x = hidden_states[0]
        if self.kernels and self.kernel_attention.fits(layout):
            cos, sin = (part[0, :, : self.head_size // 2] for part in position_embeddings)
            parameters = [parameter for group in self.groups for parameter in group.parameters]
            return FusedLayer.apply(x, self, layout, cos, sin, *parameters)[None]
        cos, sin = (part[0, :, None, : self.head_size // 2] for part in position_embeddings)
        states = BeforeAttention.apply(x, self, layout, cos, sin, *self.qkv.parameters)
        attended = attend(states, self.heads, self.key_heads, layout, Rule(self.scaling, self.window))
        after = AfterAttention.apply(
            x, attended, self, layout, *self.out.parameters, *self.gate_up.parameters, *self.down.parameters
        )
        return after[None]


def install(model: Model) -> bool:
    """Replaces the forward pass of all decoder layers if every one is a plain member of the family. Returns whether it
    did.

    `model` is a peft model on a causal language model, or a vision base with one, whose attention is
    `packed_attention`.
    """
    inner = model.get_base_model().get_decoder()
    layers = list(getattr(inner, "layers", []))
    fast = [layer for layer in layers if _fits(layer)]
    if not layers or len(fast) < len(layers):
        return False
    refresh = copies_of([group for layer in fast for group in FastLayer(layer).groups])
    # The residual stream starts in float32 (and so do the rotary embeddings); the head needs the base's precision
    # again.
    embed, final, dtype = inner.embed_tokens.forward, inner.norm.forward, inner.embed_tokens.weight.dtype

    def embed_in_float32(ids: torch.Tensor) -> torch.Tensor:
        # The first operation of each pass.
        refresh()
        return embed(ids).float()

    replace_forward(inner.embed_tokens, embed_in_float32)
    replace_forward(inner.norm, lambda x: final(x).to(dtype))
    head = model.get_base_model().lm_head
    if isinstance(head, torch.nn.Linear) and is_plain(head) and head.bias is None:
        # Read by `evaluate.losses`. A tuple, so that torch does not register the modules a second time.
        model.body_and_head = (inner, head.weight)
    return True


def _fits(layer: Any) -> TypeGuard[DecoderLayer]:
    if type(layer).__name__ not in FAMILY or type(layer.mlp.act_fn).__name__ not in {"SiLU", "SiLUActivation"}:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    linear = [
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    ]
    return attention.attention_dropout == 0 and all(is_plain(module) for module in linear)
