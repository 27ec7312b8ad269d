"""Norms, gated norms, gated MLPs and the head of models whose layers `fast_layers` does not know, on the trainer's
kernels. A module is replaced if it computes the same, whatever its class is called.
"""

import inspect
import itertools
from typing import Any, cast

import torch
from torch.nn.functional import gelu, silu

from trainer.data.layout import layout_of
from trainer.model.fast_layers import Norm, norm_of
from trainer.model.fast_lora import LinearGroup, is_plain, own
from trainer.model.fused_layers import kernels_for, kernels_of
from trainer.model.model import Decoder, Model, base_of, decoder_of, linear_of, replace_forward

# The largest relative difference of a module's results: those of bfloat16.
TOLERANCE = 0.02
# Rows of a comparison.
ROWS = 4


class _Normed(torch.autograd.Function):
    """The RMS norm of x bfloat16 [..., width]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        normed, inverse = kernels_of(rows).norm(rows, norm.weight[None], norm.epsilon)
        ctx.save_for_backward(rows, inverse)
        ctx.norm = norm
        return normed.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows, inverse = ctx.saved_tensors
        # In place, so of a copy.
        x_gradient = torch.clone(gradient, memory_format=torch.contiguous_format)
        kernels_of(rows).norm_backward(x_gradient.view(rows.shape), rows, ctx.norm.weight[None], inverse)
        return x_gradient, None


class GatedNorm:
    """norm(x) silu(gate), or norm(x silu(gate)) if `gate_first`, of groups. weight: float32 [groups, size]."""

    def __init__(self, weight: torch.Tensor, epsilon: float, gate_first: bool) -> None:
        self.weight, self.epsilon, self.gate_first = weight, epsilon, gate_first

    def exact(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """The same by torch, float32 [..., groups x size]."""
        x, gate = x.float(), silu(gate.float())
        x = (x * gate if self.gate_first else x).unflatten(-1, self.weight.shape)
        normed = (x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.weight).flatten(-2)
        return normed if self.gate_first else normed * gate


class _GatedNormed(torch.autograd.Function):
    """A gated norm of x and gate, bfloat16 [..., width]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        rows = [part.reshape(-1, part.shape[-1]) for part in (x, gate)]
        rows = [part if part.stride(1) == 1 else part.contiguous() for part in rows]
        out, inverse = kernels_of(x).gated_norm(*rows, norm.weight, norm.epsilon, norm.gate_first)
        ctx.save_for_backward(*rows, inverse)
        ctx.norm, ctx.shapes = norm, (x.shape, gate.shape)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, gate, inverse = ctx.saved_tensors
        above = gradient.contiguous().view(x.shape)
        found = kernels_of(x).gated_norm_backward(above, x, gate, ctx.norm.weight, inverse, ctx.norm.gate_first)
        x_gradient, gate_gradient = (part.view(shape) for part, shape in zip(found, ctx.shapes, strict=True))
        return x_gradient, gate_gradient, None


@torch.no_grad()
def gated_norm_of(module: torch.nn.Module) -> GatedNorm | None:
    """The gated norm that a module computes, if it does."""
    parameters = dict(module.named_parameters())
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1 or not isinstance(epsilon, float):
        return None
    if len(inspect.signature(module.forward).parameters) != 2:
        return None
    weight = parameters["weight"].detach()
    generator = torch.Generator().manual_seed(1)
    x, gate = (torch.randn(ROWS, len(weight), generator=generator).to(weight) for _ in range(2))
    try:
        result = module(x, gate).float()
    except (TypeError, RuntimeError, AttributeError):
        return None
    numbers = {value for value in vars(module).values() if type(value) is int and 0 < value < len(weight)}
    sizes = [len(weight), *(value for value in sorted(numbers) if len(weight) % value == 0)]
    for size, gate_first in itertools.product(sizes, (False, True)):
        candidate = GatedNorm(weight.float().view(-1, size), epsilon, gate_first)
        if _is_near(result, candidate.exact(x, gate)):
            return candidate
    return None


class GatedMlp:
    """down(act(gate(x)) up(x)): linear layers, of which gate and up may be one."""

    def __init__(self, gate_up: list[torch.nn.Module], down: torch.nn.Module, is_gelu: bool) -> None:
        self.gate_up, self.down = LinearGroup(gate_up), LinearGroup([down])
        self.activation = {"gelu": True} if is_gelu else {}

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of both groups."""
        return [*self.gate_up.parameters, *self.down.parameters]


class _GatedMlp(torch.autograd.Function):
    """A gated MLP of x bfloat16 [..., width], with gradients for the input and the adapters."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mlp: GatedMlp, *_parameters: torch.Tensor) -> torch.Tensor:
        gate_up, gate_up_saved = mlp.gate_up.forward(x.reshape(-1, x.shape[-1]))
        product = kernels_of(x).gated(gate_up, mlp.down.inputs, **mlp.activation)
        out, down_saved = mlp.down.forward(product)
        ctx.save_for_backward(gate_up, *gate_up_saved, *down_saved)
        ctx.mlp, ctx.shape, ctx.count = mlp, x.shape, len(gate_up_saved)
        return own(out, x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mlp, (gate_up, *saved) = ctx.mlp, ctx.saved_tensors
        above = mlp.down.gradient(len(gate_up))
        above[:, : mlp.down.width] = gradient.reshape(-1, mlp.down.width)
        down_gradients = mlp.down.backward(above, saved[ctx.count :])
        joint = mlp.gate_up.gradient(len(gate_up))
        kernels_of(joint).gated_backward(mlp.down.input_gradient(above), gate_up, joint, **mlp.activation)
        gate_up_gradients = mlp.gate_up.backward(joint, saved[: ctx.count])
        x_gradient = mlp.gate_up.input_gradient(joint).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return x_gradient, None, *gate_up_gradients, *down_gradients


@torch.no_grad()
def gated_mlp_of(module: torch.nn.Module) -> tuple[list[torch.nn.Module], torch.nn.Module, bool] | None:
    """The layers of gate and up, that of down, and whether the activation is gelu, if a module is a gated MLP."""
    children = list(module.children())
    layers = [child for child in children if is_plain(child)]
    if len(layers) not in (2, 3) or any(True for _ in module.parameters(recurse=False)):
        return None
    if any(child not in layers and next(child.parameters(), None) is not None for child in children):
        return None
    bases = {layer: linear_of(layer) for layer in layers}
    weight = bases[layers[0]].weight
    if any(base.bias is not None or base.weight.dtype != torch.bfloat16 for base in bases.values()):
        return None
    for *first, down in itertools.permutations(layers):
        width, inner = bases[down].out_features, bases[down].in_features
        if any(bases[each].in_features != width for each in first):
            continue
        if sum(bases[each].out_features for each in first) != 2 * inner:
            continue
        x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(1)).to(weight)
        try:
            result = module(x)
        except (TypeError, RuntimeError, AttributeError, IndexError, ValueError):
            return None
        if not isinstance(result, torch.Tensor) or result.shape != x.shape:
            return None
        gate, up = torch.cat([each(x) for each in first], dim=-1).float().chunk(2, dim=-1)
        for is_gelu, active in ((False, silu(gate)), (True, gelu(gate, approximate="tanh"))):
            if _is_near(result.float(), down((active * up).to(weight.dtype)).float()):
                return first, down, is_gelu
    return None


def _is_near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and float((found - expected).norm()) <= TOLERANCE * float(expected.norm())


def install(model: Model) -> set[torch.nn.Module]:
    """Replaces the parts of a model with frozen weights, where there are kernels. Returns the linear layers whose
    forward passes are no longer called.
    """
    base = base_of(model)
    weight = base.get_input_embeddings().weight
    if not kernels_for(weight.device, weight.dtype):
        return set()
    done: set[torch.nn.Module] = set()
    decoder = cast(torch.nn.Module, decoder_of(base))
    for module in list(decoder.modules()):
        if found := gated_mlp_of(module):
            first, down, is_gelu = found
            done.update([*first, down])
            _compute(module, _GatedMlp, GatedMlp(first, down, is_gelu))
        elif len(list(module.children())) == 0:
            _replace_norm(module)
    _replace_head(model, base)
    return done


def _replace_norm(module: torch.nn.Module) -> None:
    if any(parameter.requires_grad for parameter in module.parameters()):
        return
    if gated := gated_norm_of(module):
        _compute(module, _GatedNormed, gated)
    elif len(inspect.signature(module.forward).parameters) == 1 and (norm := norm_of(module)):
        _compute(module, _Normed, norm)


def _compute(module: torch.nn.Module, function: type[torch.autograd.Function], part: Any) -> None:
    """Makes a module compute a function of its inputs and a part, if these are bfloat16."""
    parameters = getattr(part, "parameters", [])

    def forward(*inputs: torch.Tensor | None) -> Any:
        if all(each is not None and each.dtype == torch.bfloat16 for each in inputs):
            return function.apply(*inputs, part, *parameters)
        return type(module).forward(module, *inputs)

    replace_forward(module, forward)


def _replace_head(model: Model, base: Model) -> None:
    """Lets `HeadLoss` compute the loss, if logits are products of the decoder's vectors and the head, or all times a
    number.
    """
    head = base.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or not is_plain(head) or head.bias is not None:
        return
    config = base.config
    # A cap changes small logits so little that a comparison misses it.
    if config is not config.get_text_config() or any(
        "softcap" in name and value for name, value in vars(config).items()
    ):
        return
    decoder, weight = cast(Decoder, decoder_of(base)), head.weight
    tokens = torch.arange(ROWS, device=weight.device)[None]
    inputs = {
        "input_ids": tokens + 1,
        "position_ids": tokens,
        "layout": layout_of([0], [ROWS], weight.device),
        "use_cache": False,
    }
    with torch.no_grad():
        hidden = decoder(**inputs).last_hidden_state
        logits, products = base(**inputs).logits.float(), (hidden @ weight.T).float()
    scale = float((logits * products).sum() / products.square().sum())
    scale = 1.0 if abs(scale - 1) < TOLERANCE / 10 else scale
    if hidden.dtype == weight.dtype and _is_near(logits, products * scale):
        # Read by `evaluate.losses`. A tuple, so that torch does not register the modules a second time.
        model.body_and_head, model.head_scale = (decoder, weight), scale
