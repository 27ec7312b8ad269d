"""Short convolutions and scans of packed documents: those of transformers, document by document."""

import inspect

import pytest
import torch
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as mamba
from transformers.models.qwen3_5 import modeling_qwen3_5 as delta

from trainer.data.layout import layout_of
from trainer.model import kernels, scans
from trainer.tests import conftest

DEVICE = torch.device(conftest.DEVICE, 0) if conftest.DEVICE == "cuda" else torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not scans.available(DEVICE), reason="no kernels for this device, or neither a compiler nor fla-core"
)
# A GPU multiplies float32 in 19 bits.
PRECISION = {torch.float32: 1e-4 if DEVICE.type == "cpu" else 0.01, torch.bfloat16: 0.01}
# Prefixes and the documents behind them: none, one for all, one for each pair; of more and of less than a chunk.
PACKS = [([0], [70, 1, 200, 33]), ([90], [5, 130, 64]), ([7, 66], [64, 3, 20, 65])]


def alone(function, packs, named, dimension):
    """What a function returns for a pack, each document with its prefix computed alone."""
    (prefixes, lengths), results = packs, {}
    shared, sharing = sum(prefixes), len(lengths) // len(prefixes)
    tokens = shared + sum(lengths)
    for index, own in enumerate(lengths):
        which = index // sharing
        begin, start = sum(prefixes[:which]), shared + sum(lengths[:index])
        rows = [*range(begin, begin + prefixes[which]), *range(start, start + own)]
        part = {
            name: value.index_select(value.shape.index(tokens), torch.tensor(rows))
            if isinstance(value, torch.Tensor) and tokens in value.shape
            else value
            for name, value in named.items()
        }
        result = function(**part)
        result = result[0] if isinstance(result, tuple) else result
        for place, row in enumerate(rows):
            results.setdefault(row, result.select(dimension, place))
    return torch.stack([results[row] for row in range(tokens)], dimension)


def compare(function, kernel, pack, named, dimension, dtype):
    def leaves(exact):
        return {
            name: value.detach().to(*(["cpu", torch.float32] if exact else [DEVICE]), copy=True).requires_grad_()
            if isinstance(value, torch.Tensor)
            else value
            for name, value in named.items()
        }

    exact, found = leaves(True), leaves(False)
    # transformers calls other packages where they are installed.
    expected = alone(inspect.unwrap(function), pack, exact, dimension)
    result = kernel(layout_of(*pack, DEVICE), **found)
    result = result[0] if isinstance(result, tuple) else result
    above = torch.randn_like(expected).to(dtype)
    expected.backward(above.float())
    result.backward(above.to(DEVICE))
    share, result = PRECISION[dtype], result.detach().cpu()
    assert float((result.float() - expected).norm()) < share * float(expected.norm())
    gradients = {name: value.grad for name, value in exact.items() if isinstance(value, torch.Tensor)}
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        # Those of decays are differences: the smallest have no more than the rounding of the largest.
        size = max(float(gradient.norm()), 0.01 * largest)
        assert float((found[name].grad.cpu().float() - gradient).norm()) < share * size, name


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(("heads", "key_size", "size"), [((2, 4), 32, 40), ((1, 1), 24, 128)])
def test_the_gated_delta_rule(pack, heads, key_size, size, dtype):
    tokens, (key_heads, value_heads) = sum(map(sum, pack)), heads
    named = {
        "query": torch.randn(1, tokens, key_heads, key_size, dtype=dtype),
        "key": torch.randn(1, tokens, key_heads, key_size, dtype=dtype),
        "value": torch.randn(1, tokens, value_heads, size, dtype=dtype),
        "g": -torch.randn(1, tokens, value_heads).abs() * 0.3,
        "beta": torch.rand(1, tokens, value_heads, dtype=dtype),
        "use_qk_l2norm_in_kernel": True,
    }
    compare(delta.torch_chunk_gated_delta_rule, scans._delta_rule, pack, named, 1, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(("groups", "heads", "state", "size"), [(1, 12, 32, 24), (2, 4, 20, 64)])
def test_mamba2(pack, groups, heads, state, size, dtype):
    tokens = sum(map(sum, pack))
    named = {
        "hidden_states": torch.randn(1, tokens, heads, size, dtype=dtype),
        "dt": torch.randn(1, tokens, heads, dtype=dtype),
        "A": -torch.rand(heads) * 0.3,
        "B": torch.randn(1, tokens, groups, state, dtype=dtype),
        "C": torch.randn(1, tokens, groups, state, dtype=dtype),
        "chunk_size": 256,
        "D": torch.randn(heads),
        "dt_bias": torch.randn(heads),
        "dt_softplus": True,
    }
    compare(mamba.mamba2_chunk_scan, scans._mamba2, pack, named, 1, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(("channels", "width", "bias", "activation"), [(100, 4, True, "silu"), (64, 3, False, None)])
def test_short_convolutions(pack, channels, width, bias, activation, dtype):
    tokens = sum(map(sum, pack))
    named = {
        "hidden_states": torch.randn(1, channels, tokens, dtype=dtype),
        "weight": torch.randn(channels, width, dtype=dtype),
        "bias": torch.randn(channels, dtype=dtype) if bias else None,
        "activation": activation,
    }
    compare(delta.causal_conv1d_fn, scans._convolve, pack, named, 2, dtype)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="threads of a CPU")
def test_results_are_the_same_with_any_number_of_threads():
    layout, found, threads = layout_of([9], [200, 31, 77]), [], torch.get_num_threads()
    inputs = [torch.randn(317, 4, 32), torch.randn(317, 4, 32), torch.randn(317, 48, 32)]
    inputs += [-torch.rand(317, 48), torch.rand(317, 48), None]
    scan, above = kernels.Scan(0.2, delta=True, normalized=True), torch.randn(317, 48, 32)
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append([scan.forward(layout, inputs), *scan.backward(layout, inputs, above)[:-1]])
    torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("decay", [30.0, 300.0])
def test_decays_that_erase_a_state_have_gradients(decay):
    """Between distant tokens they are 0, and before their masks the inverse is infinite."""
    pack = [0], [150, 20]
    named = {
        "hidden_states": torch.randn(1, 170, 2, 16),
        "dt": torch.rand(1, 170, 2),
        "A": torch.full((2,), -decay),
        "B": torch.randn(1, 170, 1, 16),
        "C": torch.randn(1, 170, 1, 16),
        "chunk_size": 256,
        "dt_softplus": True,
    }
    compare(mamba.mamba2_chunk_scan, scans._mamba2, pack, named, 1, torch.float32)
    rule = {
        "query": named["C"],
        "key": named["B"],
        "value": named["hidden_states"],
        "g": -decay * named["dt"],
        "beta": torch.rand(1, 170, 2),
        "use_qk_l2norm_in_kernel": True,
    }
    compare(delta.torch_chunk_gated_delta_rule, scans._delta_rule, pack, rule, 1, torch.float32)
