"""On an NVIDIA GPU: the CPU's results within bf16's precision, and the predicted memory. Skipped without a GPU."""

import pytest
import torch

from trainer.data.layout import layout_of, supports_varlen
from trainer.model import cuda_graphs
from trainer.model.attention import Gather, Rule, Scatter, attend
from trainer.run import memory
from trainer.run.loop import limits_of
from trainer.run.probe import log_probabilities
from trainer.runtime.errors import explain
from trainer.tests.conftest import Recorder
from trainer.tests.make_tiny import make_tiny
from trainer.tests.test_loop import assert_same, stop_after, weights
from trainer.tests.test_packing import shake

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
METHODS = [{}, {"lora": {"dropout": 1e-12}}, {"method": "qlora"}, {"method": "full", "lora": None}]
NAMES = ["lora", "dropout", "qlora", "full"]


def on_both(job, loop_of, **settings) -> list[tuple[float, dict]]:
    """The loss and gradients of the same weights on the GPU in bf16 and on the CPU in float32."""
    exact = loop_of(job("cpu", **settings), on="cpu")
    shake(exact.model)
    fast = loop_of(job("gpu", **settings), precision="bfloat16", on="cuda")
    with torch.no_grad():
        for name, parameter in fast.parameters.items():
            parameter.copy_(exact.parameters[name])
    losses = [loop.gradients(loop.data.rows[:8])[0] for loop in (fast, exact)]
    return [
        (loss, {name: each.grad for name, each in loop.parameters.items()})
        for loss, loop in zip(losses, (fast, exact), strict=True)
    ]


@pytest.mark.parametrize("settings", METHODS, ids=NAMES)
def test_gradients_in_bf16_are_those_of_the_cpu_in_float32(job, loop_of, settings):
    (found_loss, found), (expected_loss, expected) = on_both(job, loop_of, **settings)
    assert found_loss == pytest.approx(expected_loss, rel=2e-3)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert torch.cosine_similarity(gradient.cpu().flatten(), expected[name].flatten(), dim=0) > 0.995, name


@pytest.mark.parametrize(
    ("family", "config"),
    [("Qwen2", {}), ("Mistral", {"sliding_window": 24}), ("Gemma", {"head_dim": 16}), ("Phi3", {})],
)
def test_gradients_of_other_families_match_the_cpus(job, loop_of, tmp_path, family, config):
    base = {"path": str(make_tiny(tmp_path / "base", family=family, **config))}
    (_, found), (_, expected) = on_both(job, loop_of, base=base)
    for name, gradient in found.items():
        assert torch.cosine_similarity(gradient.cpu().flatten(), expected[name].flatten(), dim=0) > 0.99, name


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("shared", [0, 7])
def test_variable_length_attention_equals_padded_attention(shared, window):
    device, lengths, heads, keys = torch.device("cuda", 0), [5, 300, 41, 1], 6, 2
    if not supports_varlen(device):
        pytest.skip("this GPU has no such call")
    torch.manual_seed(0)
    tokens = torch.randn(shared + sum(lengths), heads + 2 * keys, 64, dtype=torch.bfloat16)

    def attended(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        states, layout = tokens.to(device, dtype, copy=True).requires_grad_(), layout_of([shared], lengths, device)
        out = Gather.apply(attend(Scatter.apply(states, layout), heads, keys, layout, Rule(window=window)), layout)
        out.float().square().sum().backward()
        return out.detach().float().cpu(), states.grad.float().cpu()

    for found, expected in zip(
        attended(device, torch.bfloat16), attended(torch.device("cpu"), torch.float32), strict=True
    ):
        assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("settings", METHODS, ids=NAMES)
def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(job, loop_of, settings):
    how = {"precision": "bfloat16", "on": "cuda"}
    whole = loop_of(job("whole", **settings), **how)
    assert whole.run()
    candidates = stop_after(loop_of(job("first", **settings), **how), 9)
    second = loop_of(job("second", **settings, resume_from=candidates), **how)
    assert second.totals.step == 9
    assert second.run()
    assert_same(weights(whole), weights(second))


def test_a_run_started_on_the_cpu_resumes_on_the_gpu(job, loop_of):
    candidates = stop_after(loop_of(job("first"), precision="bfloat16", on="cpu"), 9)
    protocol = Recorder()
    second = loop_of(job("second", resume_from=candidates), protocol, precision="bfloat16", on="cuda")
    assert second.totals.step == 9 and not protocol.of("warning")
    assert second.run()
    assert log_probabilities(second.model, second.data.examples, second.device)


@pytest.mark.parametrize("settings", [METHODS[0], METHODS[2], METHODS[3]], ids=["lora", "qlora", "full"])
def test_a_step_needs_the_predicted_memory(job, loop_of, tmp_path, settings):
    """On a base large enough to stand out from the libraries' memory."""
    config = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    }
    base = {"path": str(make_tiny(tmp_path / "base", **config))}
    rows = [
        [
            {"role": "user", "content": f"Say it. {index}"},
            {"role": "assistant", "content": "a word and one more " * 200},
        ]
        for index in range(8)
    ]
    torch.cuda.empty_cache()
    loop = loop_of(job(rows=rows, base=base, training={"batch_size": 8}, **settings), precision="bfloat16", on="cuda")
    for _ in range(2):
        loop.step(loop.data.rows)
    tokens, targets, _ = memory.largest_pack(
        loop.data, loop.spec, limits_of(loop.model.config, loop.spec, loop.device), loop.device
    )
    predicted = memory.predicted_bytes(memory.shape_of(loop.model.config), loop.spec, 2, tokens, targets, loop.device)
    ratio = memory.peak_bytes(loop.device) / predicted
    assert 0.75 < ratio < 1.15, f"{ratio:.2f}"


def test_cuda_graphs_have_the_losses_and_gradients_of_normal_passes(job, loop_of, monkeypatch):
    # The test's rows share more than a prefix that is worth sharing.
    monkeypatch.setattr(cuda_graphs, "MAX_SHARED", 1)
    loop = loop_of(job(), precision="bfloat16", on="cuda")
    assert loop.cuda_graphs
    shake(loop.model)

    def found(batch) -> tuple[float, list[torch.Tensor]]:
        loop.optimizer.zero_grad()
        loss, _ = loop.gradients(batch)
        return loss, [parameter.grad.clone() for parameter in loop.parameters.values()]

    # Two sizes in alternation: each starts from what the other left in the shared buffers.
    small, large = loop.data.rows[:2], loop.data.rows
    captured = [found(batch) for batch in (small, large, small, large)]
    graphs, loop.cuda_graphs = loop.cuda_graphs, None
    for (loss, gradients), (expected_loss, expected) in zip(
        captured, [found(batch) for batch in (small, large)] * 2, strict=True
    ):
        assert loss == pytest.approx(expected_loss, rel=2e-3)
        for gradient, other in zip(gradients, expected, strict=True):
            assert torch.cosine_similarity(gradient.flatten(), other.flatten(), dim=0) > 0.999
    # Replays use the current weights, not those at capture.
    loop.cuda_graphs = graphs
    with torch.no_grad():
        for name, parameter in loop.parameters.items():
            if "lora_B" in name:
                parameter.zero_()
    _, gradients = found(small)
    without = [gradient for name, gradient in zip(loop.parameters, gradients, strict=True) if "lora_A" in name]
    assert all(gradient.count_nonzero() == 0 for gradient in without)


def test_out_of_memory_during_a_run_has_its_code(job, loop_of):
    loop = loop_of(job(), precision="bfloat16", on="cuda")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            allocated = [torch.empty(1 << 20, device="cuda") for _ in range(64)]
            loop.step(allocated and loop.data.rows)
        assert explain(raised.value).code == "out_of_memory"
        assert "batch_size" in str(explain(raised.value))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
