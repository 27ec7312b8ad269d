"""The kernels for a GPU compute what torch computes in float32, to the precision of bfloat16. Without a GPU they run
where Triton is installed and TRITON_INTERPRET=1 is set.
"""

import os

import pytest
import torch
from torch.nn.functional import silu

from trainer.model import gpu_kernels

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


def test_gated_products_and_their_gradients():
    width = gpu_kernels.GATED + 476
    gate_up, above = torch.randn(TOKENS, 2 * width + 6).bfloat16(), torch.randn(TOKENS, width).bfloat16()
    gate, up = (part.float().requires_grad_() for part in gate_up[:, : 2 * width].split(width, dim=1))
    product = silu(gate) * up
    assert_near(gpu_kernels.gated(gate_up, width), product.detach())
    gradient = torch.zeros_like(gate_up)
    gpu_kernels.gated_backward(above, gate_up, gradient)
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
