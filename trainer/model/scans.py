"""Short convolutions, gated delta rules and Mamba2 of packed documents by the trainer's kernels for a CPU, or those of
`gpu_scans`, in place of the functions that a mixer of transformers calls.

Those functions have the interfaces of three packages that every family shares: causal-conv1d, flash-linear-attention
and mamba-ssm. A function is replaced if it computes the same results and gradients as a kernel, whatever its name is.
"""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.nn.functional import softplus

from trainer.data.layout import Layout, layout_of
from trainer.model import gpu_scans, kernels

# The comparison: tokens of a random document, and the largest relative difference of a result or gradient. A GPU
# multiplies float32 in 19 bits.
TOKENS, TOLERANCE = 37, {"cpu": 1e-3, "cuda": 0.02}
INFINITE = (0.0, float("inf"))
Function = Callable[..., Any]


def available(device: torch.device) -> bool:
    """Whether `with_kernels` has kernels for this device."""
    return kernels.scans_available(device) or gpu_scans.available(device)


class Pass:
    """What a decoder computes at the moment. `layout`: that of the pack; None outside of a pass."""

    layout: Layout | None = None


class _Convolution(torch.autograd.Function):
    """`kernels.convolve` of x [tokens, channels] and weight [channels, width]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool, layout: Layout
    ) -> torch.Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        turned, added = weight.T.float().contiguous(), None if bias is None else bias.float().contiguous()
        ctx.save_for_backward(x, layout.previous, turned, added)
        ctx.silu, ctx.dtype = silu, weight.dtype
        return kernels.convolve(x, layout.previous, turned, added, silu)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient = gradient if gradient.stride(1) == 1 else gradient.contiguous()
        x, previous, turned, added = ctx.saved_tensors
        found, weight, bias = kernels.convolve_backward(gradient, x, previous, turned, added, ctx.silu)
        return found, weight.T.to(ctx.dtype), bias.to(ctx.dtype) if ctx.needs_input_grad[2] else None, None, None


class _Scan(torch.autograd.Function):
    """`kernels.Scan` of q, k, v, decays, shares and skip."""

    @staticmethod
    def forward(ctx: Any, scan: kernels.Scan, layout: Layout, *inputs: torch.Tensor | None) -> torch.Tensor:
        ready = [
            *map(_heads_together, inputs[:3]),
            *(None if part is None else part.contiguous() for part in inputs[3:]),
        ]
        ctx.save_for_backward(*ready)
        ctx.scan, ctx.layout = scan, layout
        return scan.forward(layout, ready)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return None, None, *ctx.scan.backward(ctx.layout, list(ctx.saved_tensors), gradient.contiguous())


def _heads_together(rows: torch.Tensor | None) -> torch.Tensor:
    """Rows [tokens, heads, size] whose heads are next to each other."""
    assert rows is not None
    return rows if rows.stride(2) == 1 and rows.stride(1) == rows.shape[2] else rows.contiguous()


# Each takes the arguments of its package's function, and returns None if it does not compute what they ask for.


def _convolve(
    layout: Layout,
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor | None:
    if not _fits(layout, hidden_states, 2) or activation not in (None, "silu", "swish"):
        return None
    if weight.shape[-1] > kernels.WIDEST:
        return None
    compute = _Convolution.apply if layout.ends is None else gpu_scans.convolve
    return compute(hidden_states[0].T, weight, bias, activation is not None, layout).T[None]


def _delta_rule(
    layout: Layout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None] | None:
    if not _fits(layout, value, 1) or initial_state is not None or output_final_state or g.shape != beta.shape:
        return None
    scale, parts = query.shape[-1] ** -0.5, (query.to(value.dtype), key.to(value.dtype), value, g.float(), beta.float())
    parts = [part[0] for part in parts]
    if layout.ends is not None:
        return gpu_scans.delta_rule(parts, scale, use_qk_l2norm_in_kernel, layout)[None], None
    scan = kernels.Scan(scale, delta=True, normalized=use_qk_l2norm_in_kernel)
    return _Scan.apply(scan, layout, *parts, None)[None], None


def _mamba2(
    layout: Layout,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = INFINITE,
    return_final_states: bool = False,
    **_: Any,
) -> torch.Tensor | None:
    if not _fits(layout, hidden_states, 1) or initial_states is not None or return_final_states:
        return None
    if (D is not None and D.ndim > 1) or A.ndim > 1:
        return None
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = softplus(dt) if dt_softplus else dt
    share = torch.clamp(dt, *dt_limit)[0].float()
    c, b, x = (part[0].to(hidden_states.dtype) for part in (C, B, hidden_states))
    inputs = c, b, x, A.float() * share, share, None if D is None else D.float()
    if layout.ends is not None:
        return gpu_scans.mamba2(*inputs, layout)[None]
    return _Scan.apply(kernels.Scan(), layout, *inputs)[None]


def _fits(layout: Layout, tensor: torch.Tensor, token_dimension: int) -> bool:
    """Whether a tensor has the tokens of a pack, in a precision that the kernels have."""
    return (
        (layout.documents is not None or layout.ends is not None)
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and tensor.shape[0] == 1
        and tensor.shape[token_dimension] == layout.tokens
    )


def _samples(device: torch.device) -> list[tuple[Function, dict[str, Any]]]:
    """Each kernel, and arguments that any function of its interface takes, with everything that may be left out."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    convolved = {
        "hidden_states": some(1, 20, TOKENS),
        "weight": some(20, 4),
        "bias": some(20),
        "activation": "silu",
    }
    delta = {
        "query": some(1, TOKENS, 2, 16),
        "key": some(1, TOKENS, 2, 16),
        "value": some(1, TOKENS, 4, 16),
        "g": -some(1, TOKENS, 4).abs(),
        "beta": some(1, TOKENS, 4).sigmoid(),
        "use_qk_l2norm_in_kernel": True,
    }
    states = {
        "hidden_states": some(1, TOKENS, 4, 16),
        "dt": some(1, TOKENS, 4),
        "A": -some(4).exp(),
        "B": some(1, TOKENS, 2, 16),
        "C": some(1, TOKENS, 2, 16),
        "chunk_size": 16,
        "D": some(4),
        "dt_bias": some(4),
        "dt_softplus": True,
    }
    return [(_convolve, convolved), (_delta_rule, delta), (_mamba2, states)]


def _same(function: Function, kernel: Function, sample: dict[str, Any], device: torch.device) -> bool:
    """Whether a function computes what a kernel does, and its gradients."""
    found = []
    for compute in (function, lambda **named: kernel(layout_of([0], [TOKENS], device), **named)):
        named = {
            name: value.clone().requires_grad_() if isinstance(value, torch.Tensor) else value
            for name, value in sample.items()
        }
        try:
            with torch.enable_grad():
                result = compute(**named)
                result = result[0] if isinstance(result, tuple) else result
                leaves = [value for value in named.values() if isinstance(value, torch.Tensor)]
                # Weights that differ, so that no two results are exchanged.
                above = torch.linspace(-1, 1, result.numel(), device=device).view(result.shape)
                found.append([result.detach(), *torch.autograd.grad((result * above).sum(), leaves)])
        except (TypeError, AttributeError, RuntimeError, ValueError):
            # A function with another interface.
            return False
    return all(
        one.shape == other.shape and float((one - other).norm()) <= TOLERANCE[device.type] * float(other.norm())
        for one, other in zip(*found, strict=True)
    )


def with_kernels(mixer: type[torch.nn.Module], current: Pass, device: torch.device) -> type[torch.nn.Module] | None:
    """A class that computes what a mixer does on a device, with kernels in place of the functions that it calls; None
    if it calls none of theirs. Outside of a pass it computes as before.
    """
    forward = inspect.unwrap(mixer.forward)
    if not isinstance(forward, FunctionType):
        return None
    replaced: dict[str, Function] = {}
    samples = _samples(device)
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if isinstance(function, FunctionType):
            kernel = next((kernel for kernel, sample in samples if _same(function, kernel, sample, device)), None)
            if kernel:
                replaced[name] = _replacement(function, kernel, current)
    if not replaced:
        return None
    own = FunctionType(
        forward.__code__,
        {**forward.__globals__, **replaced},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    return type(mixer.__name__, (mixer,), {"forward": own})


def _replacement(function: Function, kernel: Function, current: Pass) -> Function:
    parameters = list(inspect.signature(function).parameters)

    def compute(*args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(parameters, args, strict=False)), **kwargs}
        named.pop("layout", None)
        result = None if current.layout is None else kernel(current.layout, **named)
        return function(*args, **kwargs) if result is None else result

    return compute
