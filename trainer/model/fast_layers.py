"""Decoder layers of a norm, attention, a norm and a gated MLP in two autograd functions around attention, with
gradients written by hand. A layer is replaced if it computes the same, whatever its class is called.

The same mathematics as transformers' layers with peft's adapters, in a fifth of the operations: with a few hundred
tokens a step (small batches of short conversations), launching an operation costs as much as computing it. The residual
stream is float32 in every precision.
"""

from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import torch
from torch.nn.functional import gelu, silu

from trainer.data.layout import Layout
from trainer.model.attention import Rule, attend, recorded_rules
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward
from trainer.model.fast_lora import LinearGroup, copies_of, is_plain
from trainer.model.fused_layers import FusedLayer, kernels_for
from trainer.model.model import DecoderLayer, Model, decoder_of, linear_of, replace_forward
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
# Norms of what goes into attention and the MLP, and of what they add to the residual stream.
NORMS = (
    {"input": "input_layernorm", "mlp": "post_attention_layernorm"},
    {"mixed": "post_attention_layernorm", "added": "post_feedforward_layernorm"},
    {
        "input": "input_layernorm",
        "mixed": "post_attention_layernorm",
        "mlp": "pre_feedforward_layernorm",
        "added": "post_feedforward_layernorm",
    },
    {
        "input": "input_layernorm",
        "mixed": "post_self_attn_layernorm",
        "mlp": "post_attention_layernorm",
        "added": "post_mlp_layernorm",
    },
)
HEAD_NORMS = {"q_norm", "k_norm"}
QKV = ["q_proj", "k_proj", "v_proj"], ["qkv_proj"]
GATE_UP = ["gate_proj", "up_proj"], ["gate_up_proj"]
ACTIVATION = {"act_fn", "activation_fn"}
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


@dataclass(frozen=True)
class Rotation:
    """Rotary positions (arXiv 2104.09864) of the first `size` numbers of each head, 0 for none. Numbers of two halves
    are turned together, or `neighbours`.
    """

    size: int
    neighbours: bool = False

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers that are turned together, views [..., size / 2] of x [..., head size]."""
        if self.neighbours:
            return x[..., : self.size : 2], x[..., 1 : self.size : 2]
        one, two = x[..., : self.size].chunk(2, dim=-1)
        return one, two


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, rotation: Rotation, undo: bool = False
) -> None:
    """Applies rotary positions to x [tokens, heads, size], into `out`. cos and sin [tokens, 1, rotated size / 2].
    `undo` applies the inverse rotation.
    """
    out[..., rotation.size :] = x[..., rotation.size :]
    if not rotation.size:
        return
    (one, two), (out_one, out_two) = rotation.parts(x), rotation.parts(out)
    sign = -1 if undo else 1
    torch.mul(one, cos, out=out_one)
    out_one.addcmul_(two, sin, value=-sign)
    torch.mul(two, cos, out=out_two)
    out_two.addcmul_(one, sin, value=sign)


@dataclass(frozen=True)
class HeadNorm:
    """Norms of the numbers of q and k from `start` to `end`: `norm.weight` [norms, size]."""

    start: int
    end: int
    norm: Norm

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Normalizes in `states` [tokens, at least `end`]. Returns what `backward` needs."""
        part = states[:, self.start : self.end].unflatten(1, self.norm.weight.shape)
        raw = part.to(torch.float32, copy=True)
        normed, inverse = self.norm.forward(raw, states.dtype)
        states[:, self.start : self.end] = normed.flatten(1)
        return [raw, inverse]

    def backward(self, gradient: torch.Tensor, saved: list[torch.Tensor]) -> None:
        """Makes the gradient of the results [tokens, at least `end`] that of the raw numbers."""
        part = gradient[:, self.start : self.end].unflatten(1, self.norm.weight.shape).float()
        gradient[:, self.start : self.end] = self.norm.backward(part, *saved).flatten(1)


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
        query_scale: torch.Tensor | None,
        *_parameters: torch.Tensor,
    ) -> torch.Tensor:
        normed, norm_saved = _entered(layer.input_norm, x, layer.dtype)
        joint, saved = layer.qkv.forward(normed)
        flat = joint[:, : layer.qkv.width].to(layer.attention_dtype)
        heads = [part for norm in layer.head_norms for part in norm.forward(flat)]
        states = flat.unflatten(1, (-1, layer.head_size))
        out = torch.empty_like(states, memory_format=torch.contiguous_format)
        rotate(states[:, : layer.turned], cos, sin, out[:, : layer.turned], layer.rotation)
        out[:, layer.turned :] = states[:, layer.turned :]
        if query_scale is not None:
            out[:, : layer.heads] *= query_scale[:, None]
        ctx.save_for_backward(cos, sin, query_scale, *heads, *norm_saved, *saved)
        ctx.layer, ctx.layout, ctx.counts = layer, layout, (len(heads), len(norm_saved))
        return scatter(out, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (cos, sin, query_scale, *saved), layer = ctx.saved_tensors, ctx.layer
        heads, norm_saved = ctx.counts
        heads, norm_saved, saved = saved[:heads], saved[heads : heads + norm_saved], saved[heads + norm_saved :]
        token_gradient = scatter_backward(gradient, ctx.layout)
        joint = layer.qkv.gradient(len(token_gradient))
        states = token_gradient.new_empty(token_gradient.shape)
        turned = token_gradient[:, : layer.turned]
        if query_scale is not None:
            turned = turned.clone()
            turned[:, : layer.heads] *= query_scale[:, None]
        rotate(turned, cos, sin, states[:, : layer.turned], layer.rotation, undo=True)
        states[:, layer.turned :] = token_gradient[:, layer.turned :]
        flat = states.flatten(1)
        for index, norm in enumerate(layer.head_norms):
            norm.backward(flat, heads[2 * index : 2 * index + 2])
        joint[:, : layer.qkv.width] = flat
        parameters = layer.qkv.backward(joint, saved)
        x_gradient = (
            _entered_backward(layer.input_norm, layer.qkv.input_gradient(joint), norm_saved)
            if ctx.needs_input_grad[0]
            else None
        )
        return x_gradient, None, None, None, None, None, *parameters


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
        middle = torch.add(x, mixed, alpha=layer.multiplier)
        normed, norm_saved = _entered(layer.mlp_norm, middle, layer.dtype)
        gate_up, gate_up_saved = layer.gate_up.forward(normed)
        gate, up = gate_up[:, : layer.gate_up.width].chunk(2, dim=1)
        product = (gelu(gate, approximate="tanh") if layer.gelu else silu(gate)).mul_(up)
        down_output, down_saved = layer.down.forward(product)
        added, added_saved = _normed(layer.added_norm, down_output)
        parts = [out_saved, gate_up_saved, down_saved, mixed_saved, added_saved, norm_saved]
        ctx.save_for_backward(gate_up, *(saved for part in parts for saved in part))
        ctx.layer, ctx.layout, ctx.counts = layer, layout, [len(part) for part in parts]
        return torch.add(middle, added, alpha=layer.multiplier)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gate_up, *saved), layer = ctx.saved_tensors, ctx.layer
        each = iter(saved)
        out_saved, gate_up_saved, down_saved, mixed_saved, added_saved, norm_saved = (
            [next(each) for _ in range(count)] for count in ctx.counts
        )
        tokens = len(gate_up)

        down_output = layer.down.gradient(tokens)
        added = gradient if layer.multiplier == 1 else gradient * layer.multiplier
        down_output[:, : layer.down.width] = _normed_backward(layer.added_norm, added, added_saved)
        down_gradients = layer.down.backward(down_output, down_saved)
        product_gradient = layer.down.input_gradient(down_output)

        joint = layer.gate_up.gradient(tokens)
        (gate, up), (gate_gradient, up_gradient) = (
            part[:, : layer.gate_up.width].chunk(2, dim=1) for part in (gate_up, joint)
        )
        active = gelu(gate, approximate="tanh") if layer.gelu else silu(gate)
        torch.mul(product_gradient, active, out=up_gradient)
        product_gradient.mul_(up)
        if layer.gelu:
            gate_gradient.copy_(torch.ops.aten.gelu_backward(product_gradient, gate, approximate="tanh"))
        else:
            torch.ops.aten.silu_backward.grad_input(product_gradient, gate, grad_input=gate_gradient)
        gate_up_gradients = layer.gate_up.backward(joint, gate_up_saved)
        middle_gradient = gradient + _entered_backward(layer.mlp_norm, layer.gate_up.input_gradient(joint), norm_saved)

        mixed = layer.out.gradient(tokens)
        added = middle_gradient if layer.multiplier == 1 else middle_gradient * layer.multiplier
        mixed[:, : layer.out.width] = _normed_backward(layer.mixed_norm, added, mixed_saved)
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


def _entered(norm: Norm | None, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What goes into a branch of the residual stream x, and what `_entered_backward` needs."""
    if not norm:
        return x.to(dtype), []
    normed, inverse = norm.forward(x, dtype)
    return normed, [x, inverse]


def _entered_backward(norm: Norm | None, gradient: torch.Tensor, saved: list[torch.Tensor]) -> torch.Tensor:
    return norm.backward(gradient, *saved) if norm else gradient.float()


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
    """The parts of a decoder layer: norm, attention, residual, norm, gated MLP, residual. Norms may also, or instead,
    be of what a branch adds, which may be multiplied; q and k may have norms before they are rotated.

    `turned`: the heads of q and k. Raises ValueError for a layer whose parts are others.
    """

    def __init__(self, layer: DecoderLayer, rotation: Rotation, rule: Rule) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_size, self.rotation, self.rule = attention.head_dim, rotation, rule
        whole = rotation in (Rotation(self.head_size), Rotation(0))
        self.rotation_options = {} if whole else {"size": self.head_size, "neighbours": rotation.neighbours}
        self.multiplier: float = getattr(layer, "residual_multiplier", 1.0)
        activation = next(child for name, child in _children(mlp).items() if name in ACTIVATION)
        self.gelu = _is_gelu(activation)
        self.activation = {"gelu": True} if self.gelu else {}
        norms = {role: _required_norm(_children(layer)[name]) for role, name in _norms_of(layer).items()}
        self.input_norm, self.mlp_norm = norms.get("input"), norms.get("mlp")
        self.mixed_norm, self.added_norm = norms.get("mixed"), norms.get("added")
        self.qkv = LinearGroup(_linear_of(attention, QKV))
        self.out = LinearGroup([attention.o_proj])
        self.gate_up = LinearGroup(_linear_of(mlp, GATE_UP))
        self.down = LinearGroup([mlp.down_proj])
        self.groups = self.qkv, self.out, self.gate_up, self.down
        self.dtype = self.qkv.dtype
        # The CPU's attention kernel is much slower in bf16 than in float32 (backward pass: 8.4 ms against 0.8 at 300
        # tokens).
        self.attention_dtype = torch.float32 if self.qkv.device.type == "cpu" else self.dtype
        self.heads, self.key_heads = _heads_of(attention, self.qkv, self.head_size)
        self.turned = self.heads + self.key_heads
        self.head_norms = self._head_norms(attention)
        # How Llama 4 and Ministral scale q: (growth, positions without any).
        rope: dict[str, Any] = getattr(attention.config, "rope_parameters", None) or {}
        growth = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
        self.query_growth: tuple[float, int] | None = cast(Any, growth) if all(growth) else None
        self.kernels = kernels_for(self.qkv.device, self.dtype)
        if self.kernels:
            scaling = self.head_size**-0.5 if rule.scaling is None else rule.scaling
            shape = self.heads, self.key_heads, self.head_size, scaling, rule.window
            self.kernel_attention = self.kernels.Attention(*shape)

    def _head_norms(self, attention: Any) -> list[HeadNorm]:
        parts = _children(attention)
        if not parts.keys() & HEAD_NORMS:
            return []
        q, k = (_required_norm(parts[name]) for name in ("q_norm", "k_norm"))
        first, last = self.heads * self.head_size, self.turned * self.head_size
        if len(q.weight) == len(k.weight) == self.head_size and q.epsilon == k.epsilon:
            rows = [q.weight.expand(self.heads, -1), k.weight.expand(self.key_heads, -1)]
            return [HeadNorm(0, last, Norm(torch.cat(rows).contiguous(), q.epsilon))]
        if len(q.weight) != first or len(k.weight) != last - first:
            raise ValueError("norms of q and k are neither of heads nor of all")
        return [
            HeadNorm(0, first, Norm(q.weight[None], q.epsilon)),
            HeadNorm(first, last, Norm(k.weight[None], k.epsilon)),
        ]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        position_ids: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        """The layer's residual stream, float32 [1, tokens, width], as transformers' layer computes it. Position
        embeddings: cos and sin [1, tokens, size].
        """
        x = hidden_states[0]
        query_scale = self._query_scale(position_ids)
        cos, sin = (part[0, :, : self.rotation.size // 2] for part in position_embeddings)
        if self.kernels and self.kernel_attention.fits(layout):
            parameters = [parameter for group in self.groups for parameter in group.parameters]
            return FusedLayer.apply(x, self, layout, cos, sin, query_scale, *parameters)[None]
        states = BeforeAttention.apply(x, self, layout, cos[:, None], sin[:, None], query_scale, *self.qkv.parameters)
        attended = attend(states, self.heads, self.key_heads, layout, self.rule)
        after = AfterAttention.apply(
            x, attended, self, layout, *self.out.parameters, *self.gate_up.parameters, *self.down.parameters
        )
        return after[None]

    def _query_scale(self, position_ids: torch.Tensor | None) -> torch.Tensor | None:
        """What q is multiplied with, float32 [tokens, 1]; None where that is 1."""
        if not self.query_growth:
            return None
        assert position_ids is not None, "the decoder names the positions to its layers"
        beta, original = self.query_growth
        periods = (position_ids.reshape(-1, 1) // original).float()
        return 1 + beta * torch.log1p(periods) if bool(periods.any()) else None


def _children(module: object) -> dict[str, torch.nn.Module]:
    return dict(cast(torch.nn.Module, module).named_children())


def _norms_of(layer: object) -> dict[str, str]:
    """The names of a layer's norms by what they are of. Raises ValueError if it has others."""
    names = {name for name, child in _children(layer).items() if not _is_nothing(child)} - {"self_attn", "mlp"}
    for norms in NORMS:
        if names == set(norms.values()):
            return norms
    raise ValueError("a layer has other parts")


def _is_nothing(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Identity) or (isinstance(module, torch.nn.Dropout) and module.p == 0)


def _linear_of(parent: Any, names: tuple[list[str], ...]) -> list[torch.nn.Module]:
    """The linear layers with one of these lists of names."""
    parts = _children(parent)
    return next([parts[name] for name in each] for each in names if parts.keys() >= set(each))


def _heads_of(attention: Any, qkv: LinearGroup, size: int) -> tuple[int, int]:
    """How many heads q has, and k and v each."""
    if len(qkv.outputs) == 1:
        return attention.config.num_attention_heads, attention.config.num_key_value_heads
    return qkv.outputs[0] // size, qkv.outputs[1] // size


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
    inner = decoder_of(model.get_base_model())
    layers = list(getattr(inner, "layers", []))
    if not layers or not all(_is_understood(layer) for layer in layers):
        return False
    try:
        forms = _forms_of(model, layers)
        fast = [FastLayer(layer, *form) for layer, form in zip(layers, forms, strict=True)]
    except ValueError:
        return False
    for layer, replacement in zip(layers, fast, strict=True):
        replace_forward(layer, replacement.forward)
    # Not modules: torch registers none of them.
    model.fast_layers = fast
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
    parts = _children(layer)
    if not parts.keys() >= {"self_attn", "mlp"}:
        return False
    try:
        _norms_of(layer)
    except ValueError:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    inner, gated = _children(attention).keys() - HEAD_NORMS, _children(mlp).keys() - ACTIVATION
    if inner not in [{*names, "o_proj"} for names in QKV] or gated not in [{*names, "down_proj"} for names in GATE_UP]:
        return False
    if len(_children(attention).keys() & HEAD_NORMS) == 1 or len(_children(mlp).keys() & ACTIVATION) != 1:
        return False
    linear = [*_linear_of(attention, QKV), attention.o_proj, *_linear_of(mlp, GATE_UP), mlp.down_proj]
    return not any(map(_drops, (layer, attention, mlp))) and all(is_plain(module) for module in linear)


def _drops(module: object) -> bool:
    """Whether a module leaves out numbers at random, which a comparison does not see."""
    return any("dropout" in name and isinstance(value, float) and value > 0 for name, value in vars(module).items())


def _forms_of(model: Model, layers: list[DecoderLayer]) -> list[tuple[Rotation, Rule]]:
    """How each layer rotates q and k, and attends. Raises ValueError if one computes something else than
    `FastLayer`: layers are compared once for each structure.
    """
    calls = first_calls(model)
    verdicts = {structure_of(layer): _form_of(layer, named) for layer, named in calls}
    return [verdicts[structure_of(cast(torch.nn.Module, layer))] for layer in layers]


@torch.no_grad()
def _form_of(layer: torch.nn.Module, named: dict[str, Any]) -> tuple[Rotation, Rule]:
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
    width = linear_of(_linear_of(attention, QKV)[0]).in_features
    x = torch.randn(1, sum(LENGTHS), width, generator=generator) * STREAM
    with recorded_rules() as rules:
        expected = fresh(x, **named)
    expected = expected[0] if isinstance(expected, tuple) else expected
    # The documents are shorter than windows, and scores too small for caps: a comparison sees neither.
    if len(rules) != 1 or not rules[0].is_plain:
        raise ValueError("attention follows another rule")
    size = named["position_embeddings"][0].shape[-1]
    for rotation in (Rotation(size), Rotation(size, neighbours=True), Rotation(0)):
        result = FastLayer(cast(DecoderLayer, fresh), rotation, rules[0]).forward(x, **named)
        if bool(relative_differences(result, expected).max() < TOLERANCE):
            return rotation, rules[0]
    raise ValueError("a layer computes something else")
