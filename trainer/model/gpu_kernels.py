"""Kernels in Triton for an NVIDIA GPU: what lies between the matrix products of a decoder layer, and the head's loss.

The same mathematics and names as `kernels`, which are those for a CPU. One launch takes the place of 3 to 14 of
torch's: with few tokens in a pass, launching an operation takes longer than computing it. Tensors are on the GPU;
bfloat16 ones have rows that may be apart (a stride), float32 ones are contiguous.
"""

# Triton gives kernels their types, and their calls a grid in brackets.
# pyright: reportMissingParameterType=false, reportIndexIssue=false

import torch

from trainer.data.layout import Layout
from trainer.model.attention import fits_varlen
from trainer.model.attention_rows import gather, gather_backward, scatter, scatter_backward

# Logits that a program reads at a time.
LOGITS = 4096
# FlashAttention reads 16 bytes at a time: so many numbers of two bytes, of which the distance of rows is a multiple.
ALIGNED = 8
# Numbers of gate and up that a program reads at a time.
GATED = 1024


# torch for a CPU comes without Triton.
try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
except ImportError:
    installed = False
else:
    installed = True

    @triton.jit
    def _add_norm(x, added, added_stride, weight, epsilon, total, normed, inverse, width, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
        mask = columns < width
        values = tl.load(x + row * width + columns, mask, 0.0)
        if added is not None:
            values += tl.load(added + row * added_stride + columns, mask, 0.0).to(tl.float32)
            tl.store(total + row * width + columns, values, mask)
        root = tl.rsqrt(tl.sum(values * values) / width + epsilon)
        scaled = values * root * tl.load(weight + columns, mask, 0.0)
        tl.store(normed + row * width + columns, scaled.to(tl.bfloat16), mask)
        tl.store(inverse + row, root)

    @triton.jit
    def _add_norm_backward(
        gradient, total_gradient, total, weight, inverse, out, rounded, rounded_stride, width, BLOCK: tl.constexpr
    ):
        row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
        mask = columns < width
        at = row * width + columns
        root = tl.load(inverse + row)
        scaled = tl.load(gradient + at, mask, 0.0).to(tl.float32) * tl.load(weight + columns, mask, 0.0)
        direction = tl.load(total + at, mask, 0.0) * root
        along = tl.sum(scaled * direction) / width
        result = (scaled - direction * along) * root + tl.load(total_gradient + at, mask, 0.0)
        tl.store(out + at, result, mask)
        if rounded is not None:
            tl.store(rounded + row * rounded_stride + columns, result.to(tl.bfloat16), mask)

    @triton.jit
    def _active(gate, GELU: tl.constexpr):
        # The gate's activation and its derivative. gelu in its tanh form: tanh(u) = 2 sigmoid(2 u) - 1.
        if GELU:
            sigmoid = tl.sigmoid(1.5957691216 * (gate + 0.044715 * gate * gate * gate))
            slope = gate * (1 - sigmoid) * 1.5957691216 * (1 + 0.134145 * gate * gate)
        else:
            sigmoid = tl.sigmoid(gate)
            slope = gate * (1 - sigmoid)
        return gate * sigmoid, sigmoid * (1 + slope)

    @triton.jit
    def _norm(x, stride, weight, epsilon, out, out_stride, inverse, size, BLOCK: tl.constexpr):
        row, head, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
        mask = columns < size
        values = tl.load(x + row * stride + head * size + columns, mask, 0.0).to(tl.float32)
        root = tl.rsqrt(tl.sum(values * values) / size + epsilon)
        scaled = values * root * tl.load(weight + head * size + columns, mask, 0.0)
        tl.store(out + row * out_stride + head * size + columns, scaled.to(tl.bfloat16), mask)
        tl.store(inverse + row * tl.num_programs(1) + head, root)

    @triton.jit
    def _norm_backward(gradient, gradient_stride, x, stride, weight, inverse, size, BLOCK: tl.constexpr):
        row, head, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
        mask = columns < size
        at = gradient + row * gradient_stride + head * size + columns
        root = tl.load(inverse + row * tl.num_programs(1) + head)
        scaled = tl.load(at, mask, 0.0).to(tl.float32) * tl.load(weight + head * size + columns, mask, 0.0)
        direction = tl.load(x + row * stride + head * size + columns, mask, 0.0).to(tl.float32) * root
        along = tl.sum(scaled * direction) / size
        tl.store(at, ((scaled - direction * along) * root).to(tl.bfloat16), mask)

    @triton.jit
    def _gated_norm(
        x, stride, gate, gate_stride, weight, epsilon, out, inverse, size, FIRST: tl.constexpr, BLOCK: tl.constexpr
    ):
        row, group, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
        mask, groups = columns < size, tl.num_programs(1)
        values = tl.load(x + row * stride + group * size + columns, mask, 0.0).to(tl.float32)
        gates = tl.load(gate + row * gate_stride + group * size + columns, mask, 0.0).to(tl.float32)
        active = gates * tl.sigmoid(gates)
        if FIRST:
            values *= active
        root = tl.rsqrt(tl.sum(values * values) / size + epsilon)
        scaled = values * root * tl.load(weight + group * size + columns, mask, 0.0)
        if not FIRST:
            scaled *= active
        tl.store(out + (row * groups + group) * size + columns, scaled.to(tl.bfloat16), mask)
        tl.store(inverse + row * groups + group, root)

    @triton.jit
    def _gated_norm_backward(
        gradient,
        x,
        stride,
        gate,
        gate_stride,
        weight,
        inverse,
        x_gradient,
        gate_gradient,
        size,
        FIRST: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row, group, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
        mask, groups = columns < size, tl.num_programs(1)
        at = (row * groups + group) * size + columns
        above = tl.load(gradient + at, mask, 0.0).to(tl.float32)
        values = tl.load(x + row * stride + group * size + columns, mask, 0.0).to(tl.float32)
        gates = tl.load(gate + row * gate_stride + group * size + columns, mask, 0.0).to(tl.float32)
        weights = tl.load(weight + group * size + columns, mask, 0.0)
        root = tl.load(inverse + row * groups + group)
        active, slope = _active(gates, False)
        scaled = above * weights
        direction = values * root
        if FIRST:
            direction *= active
        else:
            gate_part = scaled * direction * slope
            scaled *= active
        along = tl.sum(scaled * direction) / size
        result = (scaled - direction * along) * root
        if FIRST:
            gate_part = result * values * slope
            result *= active
        tl.store(x_gradient + at, result.to(tl.bfloat16), mask)
        tl.store(gate_gradient + at, gate_part.to(tl.bfloat16), mask)

    @triton.jit
    def _rotate(
        x,
        stride,
        cos,
        sin,
        angle_stride,
        sign,
        size,
        HALF: tl.constexpr,
        STEP: tl.constexpr,
        BETWEEN: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
        mask = columns < HALF
        at = x + row * stride + tl.program_id(1) * size + columns * STEP
        one, two = tl.load(at, mask, 0.0).to(tl.float32), tl.load(at + BETWEEN, mask, 0.0).to(tl.float32)
        cosine = tl.load(cos + row * angle_stride + columns, mask, 0.0)
        sine = tl.load(sin + row * angle_stride + columns, mask, 0.0) * sign
        tl.store(at, (one * cosine - two * sine).to(tl.bfloat16), mask)
        tl.store(at + BETWEEN, (two * cosine + one * sine).to(tl.bfloat16), mask)

    @triton.jit
    def _gated(gate_up, stride, product, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = columns < width
        gate = tl.load(gate_up + row * stride + columns, mask, 0.0).to(tl.float32)
        up = tl.load(gate_up + row * stride + width + columns, mask, 0.0).to(tl.float32)
        active, _ = _active(gate, GELU)
        tl.store(product + row * width + columns, (active * up).to(tl.bfloat16), mask)

    @triton.jit
    def _gated_backward(gradient, gate_up, stride, out, out_stride, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = columns < width
        gate = tl.load(gate_up + row * stride + columns, mask, 0.0).to(tl.float32)
        up = tl.load(gate_up + row * stride + width + columns, mask, 0.0).to(tl.float32)
        product = tl.load(gradient + row * width + columns, mask, 0.0).to(tl.float32)
        active, slope = _active(gate, GELU)
        tl.store(out + row * out_stride + columns, (product * up * slope).to(tl.bfloat16), mask)
        tl.store(out + row * out_stride + width + columns, (product * active).to(tl.bfloat16), mask)

    @triton.jit
    def _cross_entropy(logits, targets, losses, vocabulary, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * vocabulary
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
        target, hit = tl.load(targets + row), tl.zeros((BLOCK,), tl.float32)
        for first in range(0, vocabulary, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            values = tl.load(start + columns, columns < vocabulary, float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, values)
            # Columns that no block fills stay at minus infinity, whose difference is no number.
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            sums = sums * tl.exp(highest - safe) + tl.exp(values - safe)
            highest = higher
            hit += tl.where(columns == target, values, 0.0)
        top = tl.max(highest)
        log_sum = top + tl.log(tl.sum(sums * tl.exp(highest - top)))
        tl.store(losses + row, log_sum - tl.sum(hit))
        if GRADIENT:
            for first in range(0, vocabulary, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                mask = columns < vocabulary
                values = tl.load(start + columns, mask, float("-inf")).to(tl.float32)
                probability = tl.exp(values - log_sum) - tl.where(columns == target, 1.0, 0.0)
                tl.store(start + columns, probability.to(tl.bfloat16), mask)


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels compute on this device in this precision."""
    return device.type == "cuda" and dtype == torch.bfloat16 and installed and torch.version.hip is None


def _warps(block: int) -> int:
    return min(16, max(1, block // 256))


def add_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x + added, and its RMS norm: float32 [tokens, width], bfloat16 [tokens, width], and the inverse root mean square,
    float32 [tokens]. `added` is bfloat16 [tokens, width] or None.
    """
    tokens, width = x.shape
    x = x.contiguous()
    total = x if added is None else torch.empty_like(x)
    normed, inverse = x.new_empty(tokens, width, dtype=torch.bfloat16), x.new_empty(tokens)
    block = triton.next_power_of_2(width)
    stride = 0 if added is None else added.stride(0)
    _add_norm[(tokens,)](
        x, added, stride, weight, epsilon, total, normed, inverse, width, BLOCK=block, num_warps=_warps(block)
    )
    return total, normed, inverse


def add_norm_backward(
    gradient: torch.Tensor,
    total_gradient: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    inverse: torch.Tensor,
    rounded: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of x of `add_norm`, float32, from those of the norm (bfloat16) and of the sum (float32), also
    written into the columns of `rounded`, bfloat16. All [tokens, width].
    """
    tokens, width = total.shape
    out, block = torch.empty_like(total), triton.next_power_of_2(width)
    stride = 0 if rounded is None else rounded.stride(0)
    _add_norm_backward[(tokens,)](
        *(gradient.contiguous(), total_gradient.contiguous(), total, weight, inverse, out, rounded, stride, width),
        BLOCK=block,
        num_warps=_warps(block),
    )
    return out


def add(x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """x + added: float32 [tokens, width], bfloat16 [tokens, at least width]."""
    return x + added[:, : x.shape[1]]


def round_into(values: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds float32 [tokens, width] into bfloat16 rows."""
    out[:, : values.shape[1]] = values


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
    _rotate[(tokens, heads)](
        *(x, x.stride(0), cos, sin, cos.stride(0), -1.0 if undo else 1.0, size or 2 * half),
        HALF=half,
        STEP=2 if neighbours else 1,
        BETWEEN=1 if neighbours else half,
        BLOCK=triton.next_power_of_2(half),
        num_warps=1,
    )


def norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norms of the heads of x, bfloat16 [tokens, at least heads x size], into `out` or a new tensor, and the
    inverse root mean squares, float32 [tokens, heads]. weight: float32 [heads, size].
    """
    tokens, (heads, size) = len(x), weight.shape
    out = x.new_empty(tokens, heads * size) if out is None else out
    inverse, block = weight.new_empty(tokens, heads), triton.next_power_of_2(size)
    _norm[(tokens, heads)](
        *(x, x.stride(0), weight, epsilon, out, out.stride(0), inverse, size), BLOCK=block, num_warps=_warps(block)
    )
    return out, inverse


def norm_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor) -> None:
    """Makes the gradient of the results of `norm`, bfloat16 [tokens, at least heads x size], that of x."""
    heads, size = weight.shape
    block = triton.next_power_of_2(size)
    _norm_backward[(len(x), heads)](
        *(gradient, gradient.stride(0), x, x.stride(0), weight, inverse, size), BLOCK=block, num_warps=_warps(block)
    )


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float, gate_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x) silu(gate), or norm(x silu(gate)) with `gate_first`: RMS norms of the groups of x, bfloat16 [rows, groups
    x size], and the inverse root mean squares, float32 [rows, groups]. weight: float32 [groups, size].
    """
    rows, (groups, size) = len(x), weight.shape
    out, inverse = x.new_empty(x.shape), weight.new_empty(rows, groups)
    block = triton.next_power_of_2(size)
    _gated_norm[(rows, groups)](
        *(x, x.stride(0), gate, gate.stride(0), weight, epsilon, out, inverse, size),
        FIRST=gate_first,
        BLOCK=block,
        num_warps=_warps(block),
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
    groups, size = weight.shape
    block = triton.next_power_of_2(size)
    _gated_norm_backward[(len(x), groups)](
        *(gradient, x, x.stride(0), gate, gate.stride(0), weight, inverse, x_gradient, gate_gradient, size),
        FIRST=gate_first,
        BLOCK=block,
        num_warps=_warps(block),
    )
    return x_gradient, gate_gradient


def gated(gate_up: torch.Tensor, width: int, gelu: bool = False) -> torch.Tensor:
    """silu(gate) * up [tokens, width], or gelu(gate) * up, of rows that begin with the gate and end with up."""
    product = gate_up.new_empty(len(gate_up), width)
    _gated[(len(gate_up), triton.cdiv(width, GATED))](
        gate_up, gate_up.stride(0), product, width, GELU=gelu, BLOCK=GATED
    )
    return product


def gated_backward(
    gradient: torch.Tensor, gate_up: torch.Tensor, gate_up_gradient: torch.Tensor, gelu: bool = False
) -> None:
    """Writes the gradients of gate and up from that of their product [tokens, width]."""
    tokens, width = gradient.shape
    _gated_backward[(tokens, triton.cdiv(width, GATED))](
        *(gradient.contiguous(), gate_up, gate_up.stride(0), gate_up_gradient, gate_up_gradient.stride(0), width),
        GELU=gelu,
        BLOCK=GATED,
    )


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, gradient: bool) -> None:
    """Writes the losses of targets int64 [rows] into `losses` float32 [rows]. With `gradient`, the logits [rows,
    vocabulary] become their gradients.
    """
    rows, vocabulary = logits.shape
    _cross_entropy[(rows,)](logits, targets, losses, vocabulary, GRADIENT=gradient, BLOCK=LOGITS, num_warps=8)


class Attention:
    """Causal attention within documents, by the heads of one layer: FlashAttention-2 (Dao, 2023, arXiv 2307.08691)."""

    def __init__(self, heads: int, key_heads: int, size: int, scaling: float, window: int | None = None) -> None:
        self.heads, self.key_heads, self.size = heads, key_heads, size
        self.width = (heads + 2 * key_heads) * size
        self.options = {"scale": scaling, "window_size_left": None if window is None else window - 1}

    def fits(self, layout: Layout) -> bool:
        """Whether it can compute these documents: causal, of a head size that the kernels have."""
        return layout.ends is not None and layout.mutual is None and fits_varlen(torch.bfloat16, self.size)

    def _ends(self, layout: Layout) -> tuple:
        longest = max(length for _, length in layout.blocks)
        return layout.ends, layout.ends, longest, longest, 0.0, True

    def forward(self, states: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """From rows that begin with q, k and v: results [tokens, heads x size], and what `backward` needs."""
        rows = scatter(states[:, : self.width], layout)
        if rows.stride(0) % ALIGNED:
            rows = rows.contiguous()
        q, k, v = rows.unflatten(1, (-1, self.size)).split([self.heads, self.key_heads, self.key_heads], dim=1)
        found = torch.ops.aten._flash_attention_forward(q, k, v, *self._ends(layout), False, **self.options)
        out, *saved = found[:4]
        return gather(out.flatten(1), layout), [q, k, v, out, *saved]

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
        q, k, v, rows_out, log_sums, *random = saved
        rows = gather_backward(out_gradient, layout).contiguous().view_as(rows_out)
        gradients = torch.ops.aten._flash_attention_backward(
            *(rows, q, k, v, rows_out, log_sums, *self._ends(layout), *random), **self.options
        )
        to = gradient[:, : self.width]
        if layout.scatter_index is None:
            torch.cat([each.flatten(1) for each in gradients], dim=1, out=to)
        else:
            to.copy_(scatter_backward(torch.cat([each.flatten(1) for each in gradients], dim=1), layout))
