"""The kernels for a GPU compute what torch computes in float32, to the precision of bfloat16. Without a GPU they run
where Triton is installed and TRITON_INTERPRET=1 is set.
"""

import os

import pytest
import torch
from torch.nn.functional import gelu, silu

from trainer.model import gpu_kernels
from trainer.model.fast_layers import Rotation, rotate

INTERPRETED = gpu_kernels.installed and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    not (gpu_kernels.installed and torch.cuda.is_available()) and not INTERPRETED, reason="there is no GPU here"
)
TOKENS, WIDTH, BEYOND = 7, 100, 28


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device("cpu" if INTERPRETED else "cuda"):
        yield


def assert_near(found: torch.Tensor, exact: torch.Tensor, share: float = 0.005) -> None:
    assert float((found.float() - exact).norm() / exact.norm()) < share


def norm_of(total: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return total * (total.square().mean(dim=1, keepdim=True) + 1e-5).rsqrt() * weight


def norm_of_heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    states = x.unflatten(1, weight.shape)
    return (states * (states.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight).flatten(1)


@pytest.mark.parametrize("adds", [False, True])
def test_norms_and_their_gradients_with_what_is_added(adds):
    x, weight = torch.randn(TOKENS, WIDTH), torch.rand(WIDTH) + 0.5
    added = torch.randn(TOKENS, WIDTH + BEYOND).bfloat16() if adds else None
    total, normed, inverse = gpu_kernels.add_norm(x, added, weight, 1e-5)
    exact = (x + added[:, :WIDTH].float() if adds else x).requires_grad_()
    assert_near(total, exact.detach())
    assert_near(normed, norm_of(exact, weight).detach())

    above, above_total = torch.randn(TOKENS, WIDTH).bfloat16(), torch.randn(TOKENS, WIDTH)
    rounded = torch.zeros(TOKENS, WIDTH + BEYOND).bfloat16()
    found = gpu_kernels.add_norm_backward(above, above_total, total, weight, inverse, rounded)
    (norm_of(exact, weight) * above.float()).sum().backward()
    assert_near(found, exact.grad + above_total)
    assert_near(rounded[:, :WIDTH], exact.grad + above_total)
    assert not rounded[:, WIDTH:].any()


@pytest.mark.parametrize("heads", [1, 3])
def test_norms_of_heads_and_their_gradients(heads):
    size, width = 40, heads * 40
    x, weight = torch.randn(TOKENS, width + 8).bfloat16(), torch.randn(heads, size)
    exact = x[:, :width].float().requires_grad_()
    expected = norm_of_heads(exact, weight)
    gradient = torch.randn(TOKENS, width + 4).bfloat16()
    rest = gradient[:, width:].clone()
    expected.backward(gradient[:, :width].float())
    normed, inverse = gpu_kernels.norm(x, weight, 1e-5)
    gpu_kernels.norm_backward(gradient, x, weight, inverse)
    assert_near(normed, expected.detach())
    assert_near(gradient[:, :width], exact.grad)
    assert torch.equal(gradient[:, width:], rest)
    raw = x.clone()
    gpu_kernels.norm(raw, weight, 1e-5, out=x[:, :width])
    assert torch.equal(x[:, :width], normed) and torch.equal(x[:, width:], raw[:, width:])


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_gated_norms_and_their_gradients(groups, gate_first):
    width = groups * 40
    weight = torch.randn(groups, 40)
    x, gate = torch.randn(TOKENS, width + 8).bfloat16()[:, :width], torch.randn(TOKENS, width + 2).bfloat16()[:, 2:]
    parts = [part.float().requires_grad_() for part in (x, gate)]
    active = silu(parts[1])
    expected = norm_of_heads(parts[0] * active, weight) if gate_first else norm_of_heads(parts[0], weight) * active
    above = torch.randn(TOKENS, width).bfloat16()
    expected.backward(above.float())
    out, inverse = gpu_kernels.gated_norm(x, gate, weight, 1e-5, gate_first)
    assert_near(out, expected.detach())
    found = gpu_kernels.gated_norm_backward(above, x, gate, weight, inverse, gate_first)
    for gradient, part in zip(found, parts, strict=True):
        assert_near(gradient, part.grad)


@pytest.mark.parametrize("neighbours", [False, True], ids=["halves", "neighbours"])
def test_rotary_embeddings_of_the_beginning_of_heads(neighbours):
    half, size, heads = 6, 20, 3
    cos, sin = torch.randn(2, TOKENS, half)
    rows = torch.randn(TOKENS, 5 * size + 4).bfloat16()
    before = rows.clone()
    gpu_kernels.rotate(rows, cos, sin, heads, size=size, neighbours=neighbours)
    turned = before[:, : heads * size].float().unflatten(1, (heads, size))
    expected = torch.empty_like(turned)
    rotate(turned, cos[:, None], sin[:, None], expected, Rotation(2 * half, neighbours))
    assert_near(rows[:, : heads * size], expected.flatten(1))
    assert rows[:, heads * size :].equal(before[:, heads * size :])
    gpu_kernels.rotate(rows, cos, sin, heads, undo=True, size=size, neighbours=neighbours)
    back = torch.empty_like(turned)
    rotate(expected, cos[:, None], sin[:, None], back, Rotation(2 * half, neighbours), undo=True)
    assert_near(rows[:, : heads * size], back.flatten(1), 0.02)


def test_rotary_embeddings_turn_the_first_heads_and_back():
    half, heads = 12, 3
    cos, sin = (part[:, :half] for part in torch.randn(TOKENS, 4 * half).split(2 * half, dim=1))
    rows = torch.randn(TOKENS, 5 * 2 * half + 4).bfloat16()
    before, width = rows.clone(), heads * 2 * half
    gpu_kernels.rotate(rows, cos, sin, heads)
    one, two = before[:, :width].float().unflatten(1, (heads, -1)).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    assert_near(rows[:, :width], torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1).flatten(1))
    assert rows[:, width:].equal(before[:, width:])
    undone = before.clone()
    gpu_kernels.rotate(undone, cos[:, 0], sin[:, 0], heads, undo=True)
    assert_near(undone[:, :width], torch.cat([one * cos + two * sin, two * cos - one * sin], dim=-1).flatten(1))


@pytest.mark.parametrize("is_gelu", [False, True], ids=["silu", "gelu"])
def test_gated_products_and_their_gradients(is_gelu):
    width = gpu_kernels.GATED + 476
    gate_up, above = torch.randn(TOKENS, 2 * width + 6).bfloat16(), torch.randn(TOKENS, width).bfloat16()
    gate, up = (part.float().requires_grad_() for part in gate_up[:, : 2 * width].split(width, dim=1))
    product = (gelu(gate, approximate="tanh") if is_gelu else silu(gate)) * up
    assert_near(gpu_kernels.gated(gate_up, width, gelu=is_gelu), product.detach())
    gradient = torch.zeros_like(gate_up)
    gpu_kernels.gated_backward(above, gate_up, gradient, gelu=is_gelu)
    (product * above.float()).sum().backward()
    assert_near(gradient[:, : 2 * width], torch.cat([gate.grad, up.grad], dim=1))
    assert not gradient[:, 2 * width :].any()


def test_cross_entropy_and_its_gradient_in_place():
    vocabulary = 2 * gpu_kernels.LOGITS + 809
    logits, losses = (torch.randn(5, vocabulary) * 3).bfloat16(), torch.empty(5)
    targets = torch.tensor([0, vocabulary - 1, gpu_kernels.LOGITS, 77, gpu_kernels.LOGITS - 1])
    exact = logits.float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, targets, reduction="none")
    expected.sum().backward()
    before = logits.clone()
    gpu_kernels.cross_entropy(logits, targets, losses, gradient=False)
    assert_near(losses, expected.detach())
    assert logits.equal(before)
    gpu_kernels.cross_entropy(logits, targets, losses, gradient=True)
    assert_near(losses, expected.detach())
    assert_near(logits, exact.grad)
