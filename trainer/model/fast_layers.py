"""Decoder layers of a norm, attention, a norm and a gated MLP in two autograd functions around attention, with
gradients written by hand. A layer is replaced if it computes the same, whatever its class is called.

The same mathematics as transformers' layers with peft's adapters, in a fifth of the operations: with a few hundred
tokens a step (small batches of short conversations), launching an operation costs as much as computing it. The residual
stream is float32 in every precision.
"""

from typing import Any, TypeGuard, cast

import torch
from torch.nn.functional import gelu, silu

from trainer.data.layout import Layout
from trainer.model.attention import Rule, attend
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward
from trainer.model.fast_lora import LinearGroup, copies_of, is_plain
from trainer.model.fused_layers import FusedLayer, kernels_for
from trainer.model.model import DecoderLayer, Model, linear_of, replace_forward
from trainer.model.position_mixers import LENGTHS, first_calls, relative_differences, structure_of

# Layers that are known to be made so before a base is loaded, for the prediction of its memory.
FAMILY = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen2VLDecoderLayer",
    "Qwen2_5_VLDecoderLayer",
    "Qwen3DecoderLayer",
}
# The parts of the layers that are understood, by their names. Each layer must then compute what `FastLayer` does.
NORMS = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
# The comparison: the root mean square of the residual stream (small, so that what a layer adds to it shows), the size
# of weights (large, so that attention depends on positions), and the largest relative difference of a vector.
STREAM, WEIGHTS, TOLERANCE = 0.05, 2.0, 1e-3


class Norm:
    """RMS norm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv 1910.07467)."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalizes x float32 [..., width] into `dtype`; also returns the inverse root mean square [..., 1]."""
        inverse = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(self.epsilon).rsqrt_()[..., None]
        return (x * inverse).mul_(self.weight).to(dtype), inverse

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        """The gradient of x [..., width] from that of the norm, with what `forward` was given and returned."""
        gradient = gradient * self.weight
        direction = x * inverse
        along = torch.linalg.vecdot(gradient, direction).div_(x.shape[-1])[..., None]
        return gradient.addcmul_(direction, along, value=-1).mul_(inverse)


@torch.no_grad()
def norm_of(module: torch.nn.Module) -> Norm | None:
    """The norm that a module computes: times its weights, or times 1 + its weights; None if neither."""
    parameters = dict(module.named_parameters())
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1 or not isinstance(epsilon, float):
        return None
    weight = parameters["weight"].detach()
    x = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(1)).to(weight)
    result = module(x).float()
    for candidate in (Norm(weight.float(), epsilon), Norm(1 + weight.float(), epsilon)):
        expected, _ = candidate.forward(x.float(), torch.float32)
        if float((result - expected).norm()) <= 0.01 * float(expected.norm()):
            return candidate
    return None


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
        turned, heads = states[:, : layer.turned], []
        if layer.head_norm:
            raw = turned.float()
            turned, head_inverse = layer.head_norm.forward(raw, layer.attention_dtype)
            heads = [raw, head_inverse]
        if layer.rotates:
            rotate(turned, cos, sin, out[:, : layer.turned])
        else:
            out[:, : layer.turned] = turned
        out[:, layer.turned :] = states[:, layer.turned :]
        ctx.save_for_backward(x, inverse, cos, sin, *heads, *saved)
        ctx.layer, ctx.layout = layer, layout
        return scatter(out, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, inverse, cos, sin, *saved), layer = ctx.saved_tensors, ctx.layer
        joint = layer.qkv.gradient(len(x))
        states = joint[:, : layer.qkv.width].unflatten(1, (-1, layer.head_size))
        token_gradient = scatter_backward(gradient, ctx.layout)
        turned = token_gradient[:, : layer.turned]
        if layer.rotates:
            unrotated = torch.empty_like(turned, memory_format=torch.contiguous_format)
            rotate(turned, cos, sin, unrotated, undo=True)
            turned = unrotated
        if layer.head_norm:
            raw, head_inverse, *saved = saved
            turned = layer.head_norm.backward(turned.float(), raw, head_inverse)
        states[:, : layer.turned] = turned
        states[:, layer.turned :] = token_gradient[:, layer.turned :]
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
        mixed, mixed_saved = _normed(layer.mixed_norm, mixed)
        middle = x + mixed
        normed, inverse = layer.mlp_norm.forward(middle, layer.dtype)
        gate_up, gate_up_saved = layer.gate_up.forward(normed)
        gate, up = layer.gate_up.outputs_of(gate_up)
        product = (gelu(gate, approximate="tanh") if layer.gelu else silu(gate)).mul_(up)
        down_output, down_saved = layer.down.forward(product)
        added, added_saved = _normed(layer.added_norm, down_output)
        parts = [out_saved, gate_up_saved, down_saved, mixed_saved, added_saved]
        ctx.save_for_backward(middle, inverse, gate_up, *(saved for part in parts for saved in part))
        ctx.layer, ctx.layout, ctx.counts = layer, layout, [len(part) for part in parts]
        return middle + added

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (middle, inverse, gate_up, *saved), layer = ctx.saved_tensors, ctx.layer
        each = iter(saved)
        out_saved, gate_up_saved, down_saved, mixed_saved, added_saved = (
            [next(each) for _ in range(count)] for count in ctx.counts
        )
        tokens = len(middle)

        down_output = layer.down.gradient(tokens)
        down_output[:, : layer.down.width] = _normed_backward(layer.added_norm, gradient, added_saved)
        down_gradients = layer.down.backward(down_output, down_saved)
        product_gradient = layer.down.input_gradient(down_output)

        gate, up = layer.gate_up.outputs_of(gate_up)
        joint = layer.gate_up.gradient(tokens)
        gate_gradient, up_gradient = layer.gate_up.outputs_of(joint)
        active = gelu(gate, approximate="tanh") if layer.gelu else silu(gate)
        torch.mul(product_gradient, active, out=up_gradient)
        product_gradient.mul_(up)
        if layer.gelu:
            gate_gradient.copy_(torch.ops.aten.gelu_backward(product_gradient, gate, approximate="tanh"))
        else:
            torch.ops.aten.silu_backward.grad_input(product_gradient, gate, grad_input=gate_gradient)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        middle_gradient = layer.mlp_norm.backward(layer.gate_up.input_gradient(joint), middle, inverse).add_(gradient)

        mixed = layer.out.gradient(tokens)
        mixed[:, : layer.out.width] = _normed_backward(layer.mixed_norm, middle_gradient, mixed_saved)
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


def _normed(norm: Norm | None, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What a branch adds to the residual stream, and what `_normed_backward` needs."""
    if not norm:
        return x, []
    raw = x.float()
    normed, inverse = norm.forward(raw, torch.float32)
    return normed, [raw, inverse]


def _normed_backward(norm: Norm | None, gradient: torch.Tensor, saved: list[torch.Tensor]) -> torch.Tensor:
    return norm.backward(gradient, *saved) if norm else gradient


class FastLayer:
    """The parts of a decoder layer: norm, attention, residual, norm, gated MLP, residual. Each head of q and k may have
    a norm before it is rotated, and each branch one before it is added.

    `turned`: the heads of q and k, which rotary positions turn if the layer `rotates`. Raises ValueError for a layer
    whose parts are others.
    """

    def __init__(self, layer: DecoderLayer, rotates: bool = True) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_size, self.scaling, self.rotates = attention.head_dim, attention.scaling, rotates
        self.gelu = _is_gelu(mlp.act_fn)
        self.activation = {"gelu": True} if self.gelu else {}
        norms = {name: _required_norm(child) for name, child in _children(layer).items() if name in NORMS}
        wraps = len(norms) == len(NORMS)
        self.input_norm = norms["input_layernorm"]
        self.mlp_norm = norms["pre_feedforward_layernorm" if wraps else "post_attention_layernorm"]
        self.mixed_norm = norms["post_attention_layernorm"] if wraps else None
        self.added_norm = norms["post_feedforward_layernorm"] if wraps else None
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
        self.turned = self.heads + self.key_heads
        self.head_norm = None
        if "q_norm" in _children(attention):
            q, k = (_required_norm(_children(attention)[name]) for name in ("q_norm", "k_norm"))
            if len(q.weight) != self.head_size or q.epsilon != k.epsilon:
                raise ValueError("norms of q and k are of each head")
            rows = [q.weight.expand(self.heads, -1), k.weight.expand(self.key_heads, -1)]
            self.head_norm = Norm(torch.cat(rows).contiguous(), q.epsilon)
        # Set on each layer where layers differ; Mistral has it in the configuration.
        self.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self.kernels = kernels_for(self.qkv.device, self.dtype)
        if self.kernels and self.has_more and not hasattr(self.kernels, "norm"):
            self.kernels = None
        if self.kernels:
            shape = self.heads, self.key_heads, self.head_size, self.scaling, self.window
            self.kernel_attention = self.kernels.Attention(*shape)

    @property
    def has_more(self) -> bool:
        """Whether it has parts that Llama's layers do not have."""
        return bool(self.head_norm or self.mixed_norm or self.gelu or not self.rotates)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        **_: object,
    ) -> torch.Tensor:
        """The layer's residual stream, float32 [1, tokens, width], as transformers' layer computes it. Position
        embeddings: cos and sin [1, tokens, size]. Raises ValueError if they rotate a part of each head alone.
        """
        x = hidden_states[0]
        if self.rotates and position_embeddings[0].shape[-1] != self.head_size:
            raise ValueError("a part of each head is rotated")
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


def _children(module: object) -> dict[str, torch.nn.Module]:
    return dict(cast(torch.nn.Module, module).named_children())


def _required_norm(module: torch.nn.Module) -> Norm:
    norm = norm_of(module)
    if norm is None:
        raise ValueError("a norm is another one")
    return norm


def _is_gelu(activation: torch.nn.Module) -> bool:
    """Whether a gate's activation is gelu in its tanh form; else it is silu. Raises ValueError if it is neither."""
    x = torch.linspace(-4, 4, 33)
    result = activation(x)
    for is_gelu, expected in ((False, silu(x)), (True, gelu(x, approximate="tanh"))):
        if torch.allclose(result, expected, atol=1e-5):
            return is_gelu
    raise ValueError("the activation is another one")


def install(model: Model) -> bool:
    """Replaces the forward pass of all decoder layers if every one computes what `FastLayer` does. Returns whether it
    did.

    `model` is a peft model on a causal language model, or a vision base with one, whose attention is
    `packed_attention`.
    """
    inner = model.get_base_model().get_decoder()
    layers = list(getattr(inner, "layers", []))
    if not layers or not all(_is_understood(layer) for layer in layers):
        return False
    try:
        rotating = _rotating(model, layers)
        fast = [FastLayer(layer, rotates) for layer, rotates in zip(layers, rotating, strict=True)]
    except ValueError:
        return False
    for layer, replacement in zip(layers, fast, strict=True):
        replace_forward(layer, replacement.forward)
    refresh = copies_of([group for layer in fast for group in layer.groups])
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
    if isinstance(head, torch.nn.Linear) and is_plain(head) and head.bias is None and not _changes_logits(model):
        # Read by `evaluate.losses`. A tuple, so that torch does not register the modules a second time.
        model.body_and_head = (inner, head.weight)
    return True


def _changes_logits(model: Model) -> bool:
    """Whether a model does more to its logits than its head."""
    config = model.config.get_text_config()
    names = ("final_logit_softcapping", "logits_scaling", "logit_scale")
    return any(getattr(config, name, None) not in (None, 1, 1.0) for name in names)


def _is_understood(layer: Any) -> TypeGuard[DecoderLayer]:
    """Whether a layer's parts have the names of those that `FastLayer` has, and are plain."""
    norms = _children(layer).keys() - {"self_attn", "mlp"}
    if norms not in (NORMS, {"input_layernorm", "post_attention_layernorm"}) or "mlp" not in _children(layer):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if _children(attention).keys() | {"q_norm", "k_norm"} != ATTENTION or _children(mlp).keys() != MLP:
        return False
    # Sinks are parameters of the attention itself. A cap changes small scores so little that a comparison misses it.
    capped = any("softcap" in name and value for name, value in vars(attention).items())
    if capped or any(True for _ in attention.parameters(recurse=False)):
        return False
    linear = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linear += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return attention.attention_dropout == 0 and all(is_plain(module) for module in linear)


def _rotating(model: Model, layers: list[DecoderLayer]) -> list[bool]:
    """Whether each layer rotates q and k. Raises ValueError if one computes something else than `FastLayer`: layers are
    compared once for each structure.
    """
    calls = first_calls(model)
    verdicts = {structure_of(layer): _rotates(layer, named) for layer, named in calls}
    return [verdicts[structure_of(cast(torch.nn.Module, layer))] for layer in layers]


@torch.no_grad()
def _rotates(layer: torch.nn.Module, named: dict[str, Any]) -> bool:
    """Compares a new layer of the same class, in float32 on the CPU, whose weights are random: those of a fresh base
    are so small that neither positions nor norms change much.
    """
    attention = cast(DecoderLayer, layer).self_attn
    try:
        fresh = type(layer)(attention.config, attention.layer_idx).float().eval()  # type: ignore[call-arg]
    except TypeError as problem:
        raise ValueError("a layer is made otherwise") from problem
    generator = torch.Generator().manual_seed(2)
    for parameter in fresh.parameters():
        parameter.requires_grad_(False)
        # A few numbers again and again: weights of large layers take seconds otherwise.
        numbers = torch.randn(min(parameter.numel(), 1_000_003), generator=generator)
        size = WEIGHTS * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
        repeats = -(-parameter.numel() // len(numbers))
        parameter.copy_(numbers.repeat(repeats)[: parameter.numel()].view_as(parameter) * size)
    x = torch.randn(1, sum(LENGTHS), linear_of(attention.q_proj).in_features, generator=generator) * STREAM
    expected = fresh(x, **named)
    expected = expected[0] if isinstance(expected, tuple) else expected
    for rotates in (True, False):
        result = FastLayer(cast(DecoderLayer, fresh), rotates).forward(x, **named)
        if bool(relative_differences(result, expected).max() < TOLERANCE):
            return rotates
    raise ValueError("a layer computes something else")
