"""The trainer's kernels for a CPU (trainer/kernels), where set-up compiled them and the processor has what they need.

Everything else has a slower way in torch, so callers ask `available` first. Tensors are on the CPU; bfloat16 ones have
rows that may be apart (a stride), float32 ones are contiguous. Short convolutions and scans take both alike.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trainer.data.layout import Layout

FILE = Path(__file__).parents[2] / ".local/kernels/libtunery-trainer.so"
_pointer, _int, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "add_norm": [_pointer, _pointer, _int, _pointer, _float, _pointer, _pointer, _pointer, _int, _int],
    "add_norm_backward": [*[_pointer] * 7, _int, _int, _int],
    "round": [_pointer, _pointer, _int, _int, _int],
    "rotate": [_pointer, _int, _pointer, _pointer, _int, _float, _int, _int, _int, _int, ctypes.c_int32],
    "norm": [_pointer, _int, _pointer, _float, _pointer, _int, _pointer, _int, _int, _int],
    "norm_backward": [_pointer, _int, _pointer, _int, _pointer, _pointer, _int, _int, _int],
    "gated_norm": [*[_pointer, _int] * 2, _pointer, _float, ctypes.c_int32, *[_pointer] * 2, *[_int] * 3],
    "gated_norm_backward": [
        *[_pointer, *[_pointer, _int] * 2, *[_pointer] * 2, ctypes.c_int32, *[_pointer] * 2, *[_int] * 3],
    ],
    "gated": [_pointer, _int, _pointer, _int, _int, ctypes.c_int32],
    "gated_backward": [_pointer, _pointer, _int, _pointer, _int, _int, _int, ctypes.c_int32],
    "cross_entropy": [_pointer, _pointer, _pointer, _int, _int, ctypes.c_int32],
    "outer": [_pointer, _int, _pointer, _int, _float, _pointer, *[_int] * 5],
    "attention": [_pointer, *[_int] * 4, _float, _pointer, _int, _pointer, _pointer, _int],
    "attention_backward": [
        *[_pointer, _int, _int, _int, _int, _float, _pointer, _int, _pointer, _pointer, _int],
        *[_pointer, _pointer, _int, _pointer, _int],
    ],
    "convolve": [_pointer, _int, *[_pointer] * 3, *[ctypes.c_int32] * 2, _pointer, *[_int] * 3],
    "convolve_backward": [
        *[_pointer, _int, *[_pointer] * 3, *[ctypes.c_int32] * 2, _pointer, _int, *[_pointer] * 3, *[_int] * 3],
    ],
    "scan": [_pointer, *[_int] * 5, _float, *[ctypes.c_int32] * 3, *[_pointer, _int] * 3, *[_pointer] * 4],
    "scan_backward": [
        *[_pointer, *[_int] * 5, _float, *[ctypes.c_int32] * 3, *[_pointer, _int] * 3, *[_pointer] * 10, _int],
    ],
    "scan_blocks": [_int, _int],
}


@cache
def _find() -> ctypes.CDLL | None:
    if not FILE.exists():
        return None
    try:
        library = ctypes.CDLL(str(FILE))
        if not library.tunery_kernels_supported():
            return None
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"tunery_{name}")
            function.argtypes, function.restype = arguments, None
        library.tunery_scan_blocks.restype = _int
    except (OSError, AttributeError):
        # Compiled for another system, or by an older version of this program.
        return None
    return library


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels compute on this device in this precision."""
    return device.type == "cpu" and dtype == torch.bfloat16 and _find() is not None


def scans_available(device: torch.device) -> bool:
    """Whether `convolve` and `Scan` compute on this device, in bfloat16 and in float32."""
    return device.type == "cpu" and _find() is not None


def _library() -> ctypes.CDLL:
    library = _find()
    assert library is not None, "callers ask `available` first"
    return library


def _at(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def add_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x + added, and its RMS norm: float32 [tokens, width], bfloat16 [tokens, width], and the inverse root mean square,
    float32 [tokens]. `added` is bfloat16 [tokens, width] or None.
    """
    tokens, width = x.shape
    total = x if added is None else torch.empty_like(x)
    normed, inverse = x.new_empty(tokens, width, dtype=torch.bfloat16), x.new_empty(tokens)
    stride = 0 if added is None else added.stride(0)
    _library().tunery_add_norm(
        *(_at(x), _at(added), stride, _at(weight), epsilon, _at(total), _at(normed), _at(inverse), tokens, width)
    )
    return total, normed, inverse


def add(x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """x + added: float32 [tokens, width], bfloat16 [tokens, width]."""
    total = torch.empty_like(x)
    _library().tunery_add_norm(_at(x), _at(added), added.stride(0), None, 0, _at(total), None, None, *x.shape)
    return total


def add_norm_backward(
    gradient: torch.Tensor,
    total_gradient: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    inverse: torch.Tensor,
    rounded: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of x of `add_norm`, float32, from those of the norm (bfloat16) and of the sum (float32), also
    written into `rounded`, bfloat16. All [tokens, width].
    """
    out, gradient = torch.empty_like(total), gradient.contiguous()
    stride = 0 if rounded is None else rounded.stride(0)
    pointers = map(_at, (gradient, total_gradient, total, weight, inverse, out, rounded))
    _library().tunery_add_norm_backward(*pointers, stride, *total.shape)
    return out


def round_into(values: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds float32 [tokens, width] into bfloat16 rows."""
    _library().tunery_round(_at(values), _at(out), out.stride(0), *values.shape)


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    undo: bool = False,
    size: int | None = None,
    neighbours: bool = False,
) -> None:
    """Rotary embeddings of the first `heads` heads of x [tokens, ...], in place. cos and sin: float32 rows [tokens,
    rotated size / 2]; the heads' `size` is that of what is rotated unless it is given. Numbers of two halves are turned
    together, or `neighbours`.
    """
    tokens, half = cos.shape
    angles = _at(cos), _at(sin), cos.stride(0), -1.0 if undo else 1.0
    _library().tunery_rotate(_at(x), x.stride(0), *angles, tokens, heads, size or 2 * half, half, neighbours)


def norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norms of the heads of x, bfloat16 [tokens, at least heads x size], into `out` or a new tensor, and the
    inverse root mean squares, float32 [tokens, heads]. weight: float32 [heads, size].
    """
    tokens, (heads, size) = len(x), weight.shape
    out = x.new_empty(tokens, heads * size) if out is None else out
    inverse = weight.new_empty(tokens, heads)
    _library().tunery_norm(
        *(_at(x), x.stride(0), _at(weight), epsilon, _at(out), out.stride(0), _at(inverse), tokens, heads, size)
    )
    return out, inverse


def norm_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor) -> None:
    """Makes the gradient of the results of `norm`, bfloat16 [tokens, at least heads x size], that of x."""
    _library().tunery_norm_backward(
        *(_at(gradient), gradient.stride(0), _at(x), x.stride(0), _at(weight), _at(inverse), len(x), *weight.shape)
    )


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float, gate_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x) silu(gate), or norm(x silu(gate)) with `gate_first`: RMS norms of the groups of x, bfloat16 [rows, groups
    x size], and the inverse root mean squares, float32 [rows, groups]. weight: float32 [groups, size].
    """
    rows, (groups, size) = len(x), weight.shape
    out, inverse = torch.empty(x.shape, dtype=x.dtype), weight.new_empty(rows, groups)
    _library().tunery_gated_norm(
        *(_at(x), x.stride(0), _at(gate), gate.stride(0), _at(weight), epsilon, gate_first, _at(out), _at(inverse)),
        *(rows, groups, size),
    )
    return out, inverse


def gated_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    inverse: torch.Tensor,
    gate_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and gate from that of the results of `gated_norm`, [rows, groups x size] contiguous."""
    x_gradient, gate_gradient = torch.empty_like(gradient), torch.empty_like(gradient)
    _library().tunery_gated_norm_backward(
        *(_at(gradient), _at(x), x.stride(0), _at(gate), gate.stride(0), _at(weight), _at(inverse), gate_first),
        *(_at(x_gradient), _at(gate_gradient), len(x), *weight.shape),
    )
    return x_gradient, gate_gradient


def gated(gate_up: torch.Tensor, width: int, gelu: bool = False) -> torch.Tensor:
    """silu(gate) * up [tokens, width], or gelu(gate) * up, of rows that begin with the gate and end with up."""
    product = gate_up.new_empty(len(gate_up), width)
    _library().tunery_gated(_at(gate_up), gate_up.stride(0), _at(product), len(gate_up), width, gelu)
    return product


def gated_backward(
    gradient: torch.Tensor, gate_up: torch.Tensor, gate_up_gradient: torch.Tensor, gelu: bool = False
) -> None:
    """Writes the gradients of gate and up from that of their product [tokens, width]."""
    gradient = gradient.contiguous()
    to = _at(gate_up_gradient), gate_up_gradient.stride(0)
    _library().tunery_gated_backward(_at(gradient), _at(gate_up), gate_up.stride(0), *to, *gradient.shape, gelu)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, gradient: bool) -> None:
    """Writes the losses of targets int64 [rows] into `losses` float32 [rows]. With `gradient`, the logits [rows,
    vocabulary] become their gradients.
    """
    _library().tunery_cross_entropy(_at(logits), _at(targets), _at(losses), *logits.shape, gradient)


def outer(left: torch.Tensor, right: torch.Tensor, scale: float = 1.0, transposed: bool = False) -> torch.Tensor:
    """scale left^T right, float32 [rows, columns], or its transpose. left [tokens, rows], right [tokens, columns]."""
    rows, columns = left.shape[1], right.shape[1]
    out = torch.empty((columns, rows) if transposed else (rows, columns))
    steps = (1, rows) if transposed else (columns, 1)
    _library().tunery_outer(
        *(_at(left), left.stride(0), _at(right), right.stride(0), scale, _at(out), *steps, len(left), rows, columns)
    )
    return out


def _documents(layout: Layout) -> torch.Tensor:
    assert layout.documents is not None, "callers ask `fits` first"
    return layout.documents


class Attention:
    """Causal attention within documents, by the heads of one layer."""

    def __init__(self, heads: int, key_heads: int, size: int, scaling: float, window: int | None = None) -> None:
        self.heads, self.key_heads, self.size, self.window = heads, key_heads, size, window
        self.shape = heads, key_heads, size, scaling

    def fits(self, layout: Layout) -> bool:
        """Whether it can compute these documents: causal, and none longer than the window."""
        if layout.documents is None or layout.mutual is not None:
            return False
        return self.window is None or int((layout.documents[:, 1] + layout.documents[:, 3]).max()) <= self.window

    def forward(self, states: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """From rows that begin with q, k and v: results [tokens, heads x size], and what `backward` needs: the
        logarithms of the sums of weights, float32 [heads, tokens].
        """
        tokens, documents = len(states), _documents(layout)
        out = states.new_empty(tokens, self.heads * self.size)
        log_sums = states.new_empty(self.heads, tokens, dtype=torch.float32)
        _library().tunery_attention(
            *(_at(documents), len(documents), *self.shape, _at(states), states.stride(0), _at(out), _at(log_sums)),
            tokens,
        )
        return out, [log_sums]

    def backward(
        self,
        out_gradient: torch.Tensor,
        states: torch.Tensor,
        out: torch.Tensor,
        saved: list[torch.Tensor],
        layout: Layout,
        gradient: torch.Tensor,
    ) -> None:
        """Writes the gradients of q, k and v to the beginnings of the rows of `gradient` [tokens, width or more], from
        that of the results [tokens, heads x size] and what `forward` was given and returned.
        """
        (log_sums,), documents = saved, _documents(layout)
        longest = int(documents[:, 1].max())
        workspace = torch.empty(len(documents), self.key_heads, longest, 2, self.size)
        # Its copy must live until the kernel has read it.
        out_gradient = out_gradient.contiguous()
        _library().tunery_attention_backward(
            *(_at(documents), len(documents), *self.shape, _at(states), states.stride(0), _at(out), _at(log_sums)),
            *(len(states), _at(out_gradient), _at(gradient), gradient.stride(0), _at(workspace), longest),
        )


def convolve(
    x: torch.Tensor, previous: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool
) -> torch.Tensor:
    """Causal convolutions of each channel of x [tokens, channels], bfloat16 or float32, with its weights float32
    [width, channels], plus bias float32 [channels], through silu or not. The last weight is that of the token itself;
    `previous` int64 [tokens] is the token before each, or -1. Width is `WIDEST` at most.
    """
    out = torch.empty(x.shape, dtype=x.dtype)
    wide = x.dtype == torch.float32
    _library().tunery_convolve(
        *(_at(x), x.stride(0), _at(previous), _at(weight), _at(bias), silu, wide, _at(out), *x.shape, len(weight))
    )
    return out


WIDEST = 8


def convolve_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    previous: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, of weight, and of bias, from those of what `convolve` returned."""
    x_gradient, weight_gradient = torch.empty(x.shape, dtype=x.dtype), torch.empty_like(weight)
    bias_gradient, wide = weight.new_empty(x.shape[1]), x.dtype == torch.float32
    _library().tunery_convolve_backward(
        *(_at(x), x.stride(0), _at(previous), _at(weight), _at(bias), silu, wide, _at(gradient), gradient.stride(0)),
        *(_at(x_gradient), _at(weight_gradient), _at(bias_gradient), *x.shape, len(weight)),
    )
    return x_gradient, weight_gradient, bias_gradient


@dataclass(frozen=True)
class Scan:
    """States [key size, value size] of heads that decay and take up tokens (trainer/kernels/scan.cpp).

    Tensors: q and k [tokens, key heads, key size], v [tokens, heads, value size], bfloat16 or float32 with rows that
    may be apart; the logarithm of decays, and shares, float32 [tokens, heads]; skip, float32 [heads] or None.

    `delta`: a token's value is less what the state has for its key (the gated delta rule); else Mamba2. `normalized`:
    queries and keys have length 1. `scale`: what queries are then multiplied with.
    """

    scale: float = 1.0
    delta: bool = False
    normalized: bool = False

    def _start(self, layout: Layout, inputs: list[torch.Tensor | None]) -> list[Any]:
        documents = _documents(layout)
        q, k, v, decay, share, skip = inputs
        assert q is not None and k is not None and v is not None
        (_, key_heads, key_size), (_, heads, value_size) = q.shape, v.shape
        shape = (key_heads, heads, key_size, value_size, self.scale, self.delta, self.normalized)
        rows = (part for tensor in (q, k, v) for part in (_at(tensor), tensor.stride(0)))
        wide = v.dtype == torch.float32
        return [_at(documents), len(documents), *shape, wide, *rows, *map(_at, (decay, share, skip))]

    def forward(self, layout: Layout, inputs: list[torch.Tensor | None]) -> torch.Tensor:
        """The results [tokens, heads, value size] of q, k, v, decays, shares and skip."""
        v = inputs[2]
        assert v is not None
        out = torch.empty(v.shape, dtype=v.dtype)
        _library().tunery_scan(*self._start(layout, inputs), _at(out))
        return out

    def backward(
        self, layout: Layout, inputs: list[torch.Tensor | None], gradient: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """The gradients of `inputs` from those of the results, contiguous."""
        q, k, v, decay, _, skip = inputs
        assert q is not None and k is not None and v is not None and decay is not None
        tokens, (key_heads, heads) = len(q), (q.shape[1], v.shape[1])
        blocks = _library().tunery_scan_blocks(key_heads, heads)
        q_parts, k_parts = (torch.empty(blocks, *q.shape) for _ in range(2))
        v_gradient = torch.empty(v.shape, dtype=v.dtype)
        decay_gradient, share_gradient = torch.empty_like(decay), torch.empty_like(decay)
        skip_parts = None if skip is None else torch.empty_like(decay)
        _library().tunery_scan_backward(
            *self._start(layout, inputs),
            *map(_at, (gradient, q_parts, k_parts, v_gradient, decay_gradient, share_gradient, skip_parts)),
            tokens,
        )
        q_gradient, k_gradient = (parts.sum(0).to(q.dtype) for parts in (q_parts, k_parts))
        skip_gradient = None if skip_parts is None else skip_parts.sum(0)
        return [q_gradient, k_gradient, v_gradient, decay_gradient, share_gradient, skip_gradient]
