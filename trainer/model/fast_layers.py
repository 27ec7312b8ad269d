"""Decoder layers of the Llama family in two steps around attention, with gradients written by hand.

The same mathematics as transformers' layers with peft's adapters, in a fifth of the operations: at a few hundred tokens
a step, which
is what small batches of short conversations are, starting an operation costs as much as computing it. The residual
stream is float32
in every precision.
"""

import torch
from torch.nn.functional import silu

from trainer.model.attention import attend, collect, collect_back, spread, spread_back
from trainer.model.fast_lora import Group, plain

# Layers that are norm, attention, residual, norm, gated MLP, residual, and nothing more.
FAMILY = {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"}


class Norm:
    """RMS norm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv 1910.07467)."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.weight, self.epsilon = module.weight.detach().float(), module.variance_epsilon

    def forward(self, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """x [tokens, width] to its normed form in `dtype`, and the inverse of its size [tokens, 1]."""
        inverse = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(self.epsilon).rsqrt_()[:, None]
        return (x * inverse).mul_(self.weight).to(dtype), inverse

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        gradient = gradient * self.weight
        direction = x * inverse
        along = torch.linalg.vecdot(gradient, direction).div_(x.shape[-1])[:, None]
        return gradient.addcmul_(direction, along, value=-1).mul_(inverse)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, back: bool = False) -> None:
    """Rotary positions (arXiv 2104.09864) of x [tokens, heads, size] into `out`; cos and sin [tokens, 1, size / 2].
    `back` undoes it.
    """
    one, two = x.chunk(2, dim=-1)
    out_one, out_two = out.chunk(2, dim=-1)
    sign = -1 if back else 1
    torch.mul(one, cos, out=out_one)
    out_one.addcmul_(two, sin, value=-sign)
    torch.mul(two, cos, out=out_two)
    out_two.addcmul_(one, sin, value=sign)


class Before(torch.autograd.Function):
    """From the residual stream [tokens, width] to q, k and v in one tensor of attention's padded rows [rows, heads +
    2 key heads, size].
    """

    @staticmethod
    def forward(ctx, x, layer: "FastLayer", layout, cos, sin, *_parameters):
        normed, inverse = layer.first_norm.forward(x, layer.dtype)
        joint, kept = layer.qkv.forward(normed)
        states = joint[:, : layer.qkv.width].unflatten(1, (-1, layer.head_size)).to(layer.attention_dtype)
        out = torch.empty_like(states, memory_format=torch.contiguous_format)
        rotate(states[:, : layer.rotated], cos, sin, out[:, : layer.rotated])
        out[:, layer.rotated :] = states[:, layer.rotated :]
        ctx.save_for_backward(x, normed, inverse, cos, sin, *kept)
        ctx.layer, ctx.layout = layer, layout
        return spread(out, layout)

    @staticmethod
    def backward(ctx, gradient):
        (x, normed, inverse, cos, sin, *kept), layer = ctx.saved_tensors, ctx.layer
        joint = layer.qkv.gradient(len(x))
        states = joint[:, : layer.qkv.width].unflatten(1, (-1, layer.head_size))
        of_tokens = spread_back(gradient, ctx.layout)
        if states.dtype == of_tokens.dtype:
            rotate(of_tokens[:, : layer.rotated], cos, sin, states[:, : layer.rotated], back=True)
        else:
            straight = of_tokens.new_empty(len(x), layer.rotated, layer.head_size)
            rotate(of_tokens[:, : layer.rotated], cos, sin, straight, back=True)
            states[:, : layer.rotated] = straight
        states[:, layer.rotated :] = of_tokens[:, layer.rotated :]
        parameters = layer.qkv.backward(joint, normed, kept)
        x_gradient = (
            layer.first_norm.backward(layer.qkv.input_gradient(joint), x, inverse) if ctx.needs_input_grad[0] else None
        )
        return x_gradient, None, None, None, None, *parameters


class After(torch.autograd.Function):
    """From the residual stream x [tokens, width] and attention's result [rows, heads, size] to the residual stream
    after the layer.
    """

    @staticmethod
    def forward(ctx, x, rows, layer: "FastLayer", layout, *_parameters):
        attended = collect(rows, layout).flatten(1).to(layer.dtype)
        mixed, out_kept = layer.out.forward(attended)
        middle = x + mixed[:, : layer.out.width]
        normed, inverse = layer.second_norm.forward(middle, layer.dtype)
        wide, wide_kept = layer.wide.forward(normed)
        gate, up = layer.wide.outputs_of(wide)
        product = silu(gate).mul_(up)
        narrow, down_kept = layer.down.forward(product)
        ctx.save_for_backward(attended, middle, normed, inverse, wide, product, *out_kept, *wide_kept, *down_kept)
        ctx.layer, ctx.layout, ctx.counts = layer, layout, (len(out_kept), len(wide_kept))
        return middle + narrow[:, : layer.down.width]

    @staticmethod
    def backward(ctx, gradient):
        (attended, middle, normed, inverse, wide, product, *kept), layer = ctx.saved_tensors, ctx.layer
        first, second = ctx.counts
        out_kept, wide_kept, down_kept = kept[:first], kept[first : first + second], kept[first + second :]
        tokens = len(middle)

        narrow = layer.down.gradient(tokens)
        narrow[:, : layer.down.width] = gradient
        down_gradients = layer.down.backward(narrow, product, down_kept)
        product_gradient = layer.down.input_gradient(narrow)

        gate, up = layer.wide.outputs_of(wide)
        joint = layer.wide.gradient(tokens)
        gate_gradient, up_gradient = layer.wide.outputs_of(joint)
        torch.mul(product_gradient, silu(gate), out=up_gradient)
        torch.ops.aten.silu_backward.grad_input(product_gradient.mul_(up), gate, grad_input=gate_gradient)
        wide_gradients = layer.wide.backward(joint, normed, wide_kept)
        middle_gradient = layer.second_norm.backward(layer.wide.input_gradient(joint), middle, inverse).add_(gradient)

        mixed = layer.out.gradient(tokens)
        mixed[:, : layer.out.width] = middle_gradient
        out_gradients = layer.out.backward(mixed, attended, out_kept)
        attended_gradient = (
            layer.out.input_gradient(mixed).unflatten(1, (-1, layer.head_size)).to(layer.attention_dtype)
        )
        return (
            middle_gradient,
            collect_back(attended_gradient, ctx.layout),
            None,
            None,
            *out_gradients,
            *wide_gradients,
            *down_gradients,
        )


class FastLayer:
    """A decoder layer's parts, and its forward pass in place of transformers'."""

    def __init__(self, layer: torch.nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_size, self.scaling = attention.head_dim, attention.scaling
        self.first_norm, self.second_norm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        self.qkv = Group([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = Group([attention.o_proj])
        self.wide = Group([mlp.gate_proj, mlp.up_proj])
        self.down = Group([mlp.down_proj])
        self.dtype = self.qkv.dtype
        # The CPU's attention kernel is many times slower in bf16 than in float32 (its backward pass: 8.4 ms against 0.8
        # at 300 tokens).
        self.attention_dtype = torch.float32 if self.qkv.device.type == "cpu" else self.dtype
        self.heads, self.key_heads = self.qkv.outputs[0] // self.head_size, self.qkv.outputs[1] // self.head_size
        self.rotated = self.heads + self.key_heads
        # Where layers differ in it each has its own; Mistral's share that of the configuration.
        self.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        layer.forward = self.forward

    def forward(self, hidden_states, position_embeddings, layout, **_) -> torch.Tensor:
        x = hidden_states[0]
        cos, sin = (part[0, :, None, : self.head_size // 2] for part in position_embeddings)
        states = Before.apply(x, self, layout, cos, sin, *self.qkv.parameters)
        attended = attend(states, self.heads, self.key_heads, layout, self.scaling, self.window)
        after = After.apply(
            x, attended, self, layout, *self.out.parameters, *self.wide.parameters, *self.down.parameters
        )
        return after[None]


def install(model: torch.nn.Module) -> bool:
    """Replaces the forward pass of the decoder layers where all of them are plainly of the family; returns whether they
    are.

    `model` is a peft model on a causal language model whose attention is `packed_attention`.
    """
    inner = getattr(model.get_base_model(), "model", None)
    layers = list(getattr(inner, "layers", []))
    if not layers or not all(_fits(layer) for layer in layers):
        return False
    for layer in layers:
        FastLayer(layer)
    # The residual stream begins in float32 (and with it the rotary positions); the head wants the base's precision
    # again.
    embed, final, dtype = inner.embed_tokens.forward, inner.norm.forward, inner.embed_tokens.weight.dtype
    inner.embed_tokens.forward = lambda ids: embed(ids).float()
    inner.norm.forward = lambda x: final(x).to(dtype)
    head = model.get_base_model().lm_head
    if plain(head) and head.bias is None:
        # Read by `evaluate.losses`. In a tuple, so that they do not become parts of the model a second time.
        model.body_and_head = (inner, head.weight)
    return True


def _fits(layer: torch.nn.Module) -> bool:
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
    return attention.attention_dropout == 0 and all(plain(module) for module in linear)
