"""The trainer's kernels compute what torch computes in float32, to the precision of bfloat16."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu

from trainer.data.layout import layout_of
from trainer.model import fast_layers, kernels
from trainer.model.attention import KernelAttention
from trainer.tests.make_tiny import make_tiny
from trainer.tests.test_packing import gradients

pytestmark = pytest.mark.skipif(
    not kernels.available(torch.device("cpu"), torch.bfloat16), reason="no kernels for this CPU, or no compiler"
)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def assert_near(found: torch.Tensor, exact: torch.Tensor, share: float = 0.005) -> None:
    assert float((found.float() - exact).norm() / exact.norm()) < share


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def attention_in_float32(states, prefixes, lengths, heads, key_heads, size) -> torch.Tensor:
    """Each document alone, by torch: [tokens, heads x size]."""
    shared, sharing = sum(prefixes), len(lengths) // len(prefixes)
    out, start = [None] * shared, shared
    for index, own in enumerate(lengths):
        which = index // sharing
        begin, prefix = sum(prefixes[:which]), prefixes[which]
        rows = torch.cat([states[begin : begin + prefix], states[start : start + own]])
        q, k, v = rows.unflatten(1, (-1, size)).transpose(0, 1)[None].split([heads, key_heads, key_heads], dim=1)
        result = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)[0]
        result = result.transpose(0, 1).flatten(1)
        if index % sharing == 0:
            out[begin : begin + prefix] = result[:prefix]
        out += result[prefix:]
        start += own
    return torch.stack(out)


@pytest.mark.parametrize(
    ("prefixes", "lengths", "heads", "key_heads", "size"),
    [
        ([0], [300, 1, 64, 33], 3, 1, 64),
        ([30], [17, 270, 1], 4, 2, 24),
        ([5, 40], [7, 90, 3, 31], 2, 2, 128),
        ([0], [5], 2, 1, 8),
    ],
    ids=["own prompts", "one prefix", "a prefix for each pair", "shorter than a tile"],
)
def test_attention_and_its_gradients(prefixes, lengths, heads, key_heads, size):
    tokens, width = sum(prefixes) + sum(lengths), (heads + 2 * key_heads) * size
    joint, gradient = numbers(tokens, width + 6), torch.full((tokens, width + 6), 7.0).bfloat16()
    exact = joint[:, :width].float().requires_grad_()
    expected = attention_in_float32(exact, prefixes, lengths, heads, key_heads, size)
    # Rows that are apart: the kernel reads a copy.
    above = numbers(tokens, heads * size + 8)[:, : heads * size]
    expected.backward(above.float())
    layout = layout_of(prefixes, lengths)
    attention = kernels.Attention(heads, key_heads, size, 0.3)
    out, saved = attention.forward(joint, layout)
    attention.backward(above, joint, out, saved, layout, gradient)
    assert_near(out, expected.detach())
    parts = [heads * size, key_heads * size, key_heads * size]
    for found, right in zip(gradient[:, :width].split(parts, dim=1), exact.grad.split(parts, dim=1), strict=True):
        assert_near(found, right)
    assert bool((gradient[:, width:] == 7).all()), "columns of the adapters stay as they are"


def test_attention_is_the_same_with_any_number_of_threads():
    layout, attention = layout_of([9], [200, 31, 77]), kernels.Attention(4, 2, 32, 0.2)
    joint, above = numbers(317, 256), numbers(317, 128)
    found, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        gradient = torch.empty_like(joint)
        out, saved = attention.forward(joint, layout)
        attention.backward(above, joint, out, saved, layout, gradient)
        found.append(torch.cat([out, gradient], 1))
    torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_norm_of_a_sum_and_its_gradient():
    x, added, weight = torch.randn(70, 100), numbers(70, 104)[:, :100], torch.randn(100)
    exact = x.clone().requires_grad_()
    total = exact + added.float()
    expected = total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight
    above, total_above = numbers(70, 110)[:, :100], torch.randn(70, 100)
    torch.autograd.backward([expected, total], [above.float(), total_above])
    found_total, normed, inverse = kernels.add_norm(x, added, weight, 1e-5)
    rounded = torch.zeros(70, 110).bfloat16()
    gradient = kernels.add_norm_backward(above, total_above, found_total, weight, inverse, rounded)
    torch.testing.assert_close(found_total, total.detach())
    torch.testing.assert_close(kernels.add(x, added), total.detach())
    assert_near(normed, expected.detach())
    torch.testing.assert_close(gradient, exact.grad, atol=1e-4, rtol=1e-4)
    assert torch.equal(rounded[:, :100], gradient.bfloat16()) and not rounded[:, 100:].any()


@pytest.mark.parametrize("heads", [1, 3])
def test_norms_of_heads_and_their_gradients(heads):
    size, width = 40, heads * 40
    x, weight = numbers(70, width + 8), torch.randn(heads, size)
    exact = x[:, :width].float().requires_grad_()
    states = exact.unflatten(1, (heads, size))
    expected = (states * (states.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight).flatten(1)
    gradient = numbers(70, width + 4)
    rest = gradient[:, width:].clone()
    expected.backward(gradient[:, :width].float())
    normed, inverse = kernels.norm(x, weight, 1e-5)
    kernels.norm_backward(gradient, x, weight, inverse)
    assert_near(normed, expected.detach())
    assert_near(gradient[:, :width], exact.grad)
    assert torch.equal(gradient[:, width:], rest)
    kernels.norm(x, weight, 1e-5, out=x)
    assert torch.equal(x[:, :width], normed)


@pytest.mark.parametrize("activation", [silu, partial(gelu, approximate="tanh")], ids=["silu", "gelu"])
def test_gated_product_and_its_gradient(activation):
    gate_up = numbers(33, 2 * 50 + 4) * 4
    gate_up[0, :3] = torch.tensor([200.0, -200.0, 0.0])
    exact = gate_up.float().requires_grad_()
    is_gelu = activation is not silu
    expected = activation(exact[:, :50]) * exact[:, 50:100]
    above, gradient = numbers(33, 50), torch.zeros_like(gate_up)
    expected.backward(above.float())
    kernels.gated_backward(above, gate_up, gradient, is_gelu)
    assert_near(kernels.gated(gate_up, 50, is_gelu), expected.detach())
    assert_near(gradient, exact.grad)


@pytest.mark.parametrize(("tokens", "rows", "columns"), [(700, 16, 70), (3, 40, 64), (1, 1, 5)])
def test_gradients_of_adapters(tokens, rows, columns):
    left, right = numbers(tokens, rows + 3)[:, :rows], numbers(tokens, columns + 8)[:, :columns]
    exact = 0.5 * left.float().T @ right.float()
    torch.testing.assert_close(kernels.outer(left, right, 0.5), exact, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(kernels.outer(left, right, 0.5, transposed=True), exact.T, atol=1e-3, rtol=1e-4)


def test_rotation_and_back():
    x, before = numbers(40, 3 * 16 + 5), None
    angles = torch.rand(40, 8) * 6
    before, one, two = x.clone(), x[:, :8].float(), x[:, 8:16].float()
    kernels.rotate(x, angles.cos(), angles.sin(), 2)
    assert_near(x[:, :8], one * angles.cos() - two * angles.sin())
    assert_near(x[:, 8:16], two * angles.cos() + one * angles.sin())
    assert torch.equal(x[:, 32:], before[:, 32:])
    kernels.rotate(x, angles.cos(), angles.sin(), 2, undo=True)
    assert_near(x, before.float(), 0.01)


@pytest.mark.parametrize("half", [6, 12])
def test_rotation_of_neighbours_in_a_part_of_each_head(half):
    x, size = numbers(40, 2 * 32 + 5), 32
    angles, before = torch.rand(40, half) * 6, x.clone()
    kernels.rotate(x, angles.cos(), angles.sin(), 2, size=size, neighbours=True)
    for head in (0, size):
        one, two = (before[:, head + start : head + 2 * half : 2].float() for start in (0, 1))
        assert_near(x[:, head : head + 2 * half : 2], one * angles.cos() - two * angles.sin())
        assert_near(x[:, head + 1 : head + 2 * half : 2], two * angles.cos() + one * angles.sin())
        assert torch.equal(x[:, head + 2 * half : head + size], before[:, head + 2 * half : head + size])
    kernels.rotate(x, angles.cos(), angles.sin(), 2, undo=True, size=size, neighbours=True)
    assert_near(x, before.float(), 0.01)


def test_rotation_of_halves_of_a_part_of_each_head():
    x, angles = numbers(40, 2 * 32), torch.rand(40, 6) * 6
    before, one, two = x.clone(), x[:, 32:38].float(), x[:, 38:44].float()
    kernels.rotate(x, angles.cos(), angles.sin(), 2, size=32)
    assert_near(x[:, 32:38], one * angles.cos() - two * angles.sin())
    assert_near(x[:, 38:44], two * angles.cos() + one * angles.sin())
    assert torch.equal(x[:, 44:], before[:, 44:])


def test_cross_entropy_and_its_gradient():
    logits, targets = numbers(9, 1003) * 5, torch.randint(0, 1003, (9,))
    # A token that is nearly certain: its gradient is much smaller than 1 and is not rounded beside it.
    logits[0, targets[0]] = 30
    exact = logits.float().requires_grad_()
    expected = cross_entropy(exact, targets, reduction="none")
    expected.sum().backward()
    losses, kept = torch.empty(9), logits.clone()
    kernels.cross_entropy(logits, targets, losses, gradient=False)
    assert torch.equal(logits, kept)
    kernels.cross_entropy(logits, targets, losses, gradient=True)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-6)
    assert_near(logits, exact.grad)
    assert logits[0, targets[0]].item() == pytest.approx(exact.grad[0, targets[0]].item(), rel=0.01)


def test_what_is_not_a_number_stays_none():
    """A training whose loss is none stops with an error."""
    logits, losses = numbers(2, 64), torch.empty(2)
    logits[0, 3] = float("nan")
    logits[1] = float("inf")
    kernels.cross_entropy(logits, torch.tensor([5, 5]), losses, gradient=True)
    assert bool(losses.isnan().all())
    joint = numbers(4, 24)
    joint[1, 0] = float("nan")
    out, _ = kernels.Attention(1, 1, 8, 1.0).forward(joint, layout_of([0], [4]))
    assert bool(out[1].isnan().all())


@pytest.mark.parametrize(
    ("family", "config", "uses_kernels"),
    [
        ("Llama", {}, True),
        ("Qwen2", {}, True),
        ("Qwen3", {"head_dim": 24}, True),
        ("Gemma3", {"head_dim": 16}, True),
        ("SmolLM3", {"no_rope_layers": [1, 0]}, True),
        ("Phi3", {"head_dim": 16, "partial_rotary_factor": 0.75}, True),
        ("Ministral3", {"max_position_embeddings": 65536}, True),
        ("Olmo3", {}, True),
        ("Granite", {"residual_multiplier": 0.5, "attention_multiplier": 0.2}, True),
        ("Glm4", {"head_dim": 16, "partial_rotary_factor": 0.5}, True),
        ("Mistral", {"sliding_window": 24}, False),
    ],
)
def test_layers_in_bf16_have_the_gradients_of_float32(
    job, loop_of, tmp_path, monkeypatch, family, config, uses_kernels
):
    base = {"path": str(make_tiny(tmp_path / "base", family=family, vocab_size=2048, **config))}
    calls, apply = [], fast_layers.FusedLayer.apply
    monkeypatch.setattr(fast_layers.FusedLayer, "apply", lambda *inputs: calls.append(1) or apply(*inputs))
    loop, exact = loop_of(job(base=base), precision="bfloat16"), loop_of(job("exact", base=base))
    loss, found = gradients(loop, loop.data.rows[:8])
    assert bool(calls) == uses_kernels
    expected_loss, expected = gradients(exact, exact.data.rows[:8])
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    for name, gradient in found.items():
        assert torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.999, name


@pytest.mark.parametrize(("family", "method"), [("HunYuanDenseV1", {}), ("Llama", {"method": "full", "lora": None})])
def test_models_with_layers_of_transformers_use_the_kernels_for_attention(
    job, loop_of, tmp_path, monkeypatch, family, method
):
    base = {"path": str(make_tiny(tmp_path / "base", family=family, vocab_size=2048, head_dim=16))}
    calls, apply = [], KernelAttention.apply
    monkeypatch.setattr(KernelAttention, "apply", lambda *inputs: calls.append(1) or apply(*inputs))
    loop, exact = loop_of(job(base=base, **method), precision="bfloat16"), loop_of(job("exact", base=base, **method))
    loss, found = gradients(loop, loop.data.rows[:8])
    assert calls
    calls.clear()
    expected_loss, expected = gradients(exact, exact.data.rows[:8])
    assert not calls and loss == pytest.approx(expected_loss, rel=1e-3)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.999, name


def test_without_kernels_torch_computes_the_same(job, loop_of, monkeypatch):
    loop = loop_of(job(), precision="bfloat16")
    loss, found = gradients(loop, loop.data.rows[:8])
    monkeypatch.setattr(kernels, "_find", lambda: None)
    without = loop_of(job("without"), precision="bfloat16")
    other_loss, others = gradients(without, without.data.rows[:8])
    assert loss == pytest.approx(other_loss, rel=1e-3)
    for name, gradient in found.items():
        assert torch.cosine_similarity(gradient.flatten(), others[name].flatten(), dim=0) > 0.999, name
