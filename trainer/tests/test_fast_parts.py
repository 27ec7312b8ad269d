"""Norms, gated norms, gated MLPs and heads on the trainer's kernels: those of transformers."""

import pytest
import torch

from tests.families import packing
from tests.families.checkpoints import write
from trainer.data.packing import pack
from trainer.model import fast_lora, fast_parts, kernels
from trainer.model.load import load_base, with_adapter
from trainer.run.evaluate import losses
from trainer.runtime.spec import Base, Lora, ModelSpec

pytestmark = pytest.mark.skipif(
    not kernels.available(packing.CPU, torch.bfloat16), reason="no kernels for this CPU, or no compiler"
)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("groups", "size"), [(1, 100), (3, 40)])
def test_gated_norms_and_their_gradients(groups, size, gate_first):
    torch.manual_seed(0)
    width = groups * size
    norm = fast_parts.GatedNorm(torch.randn(groups, size), 1e-5, gate_first)
    rows = torch.randn(1, 70, 2 * width + 6).bfloat16()
    # Rows that are apart, as those of one of several outputs of a layer are.
    parts = rows[..., :width], rows[..., width : 2 * width]
    found = [part.detach().requires_grad_() for part in parts]
    exact = [part.detach().float().requires_grad_() for part in parts]
    result, expected = fast_parts._GatedNormed.apply(*found, norm), norm.exact(*exact)
    above = torch.randn_like(expected).bfloat16()
    result.backward(above)
    expected.backward(above.float())
    for one, other in [(result, expected), *((a.grad, b.grad) for a, b in zip(found, exact, strict=True))]:
        assert float((one.float() - other).norm()) < 0.005 * float(other.norm())


def adapted(folder, dtype):
    """The model of a checkpoint with an adapter of random weights, the same in each precision."""
    spec = ModelSpec(
        job_id="job",
        base=Base("family", str(folder)),
        method="lora",
        lora=Lora(r=4, alpha=8, dropout=0.0, target_modules="all-linear"),
        start=None,
        threads=1,
        converters="",
    )
    torch.manual_seed(0)
    model = with_adapter(load_base(spec, packing.CPU, dtype), spec)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    return model


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "granite_h"])
def test_hybrids_in_bf16_have_the_gradients_of_float32(tmp_path, name):
    write(name, tmp_path)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        model = adapted(tmp_path, dtype)
        loss = losses(model, pack(packing.rows()))
        loss.mean().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
        found.append((loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
        if dtype == torch.bfloat16:
            replaced = [module for module in model.modules() if "forward" in vars(module)]
            layers = model.config.num_hidden_layers
            of_layers = [module for module in replaced if not hasattr(module, "lora_A")]
            assert len(of_layers) >= 3 * layers, "two norms and an MLP of each layer"
            assert hasattr(model, "body_and_head")
            scaled = getattr(model.config, "logits_scaling", 1)
            assert model.head_scale == pytest.approx(1 / scaled, rel=0.01)
    (loss, gradient), (exact_loss, exact) = found
    assert float((loss - exact_loss).abs().max()) < 0.05
    assert float((gradient - exact).norm()) < 0.05 * float(exact.norm())


def test_layers_that_get_one_input_are_one_product(tmp_path):
    write("qwen3_5_text", tmp_path)
    model = adapted(tmp_path, torch.float32)
    mixer = next(module for module in model.modules() if hasattr(module, "in_proj_qkv"))
    groups = fast_lora._sharing(model)[type(mixer)]
    assert {"in_proj_qkv", "in_proj_z"} <= set(groups[0]) and "out_proj" not in groups[0]
    sources = [fast_lora.linear_of(mixer.get_submodule(name)).weight for name in ("in_proj_qkv", "in_proj_z")]
    assert len({weight.untyped_storage().data_ptr() for weight in sources}) == 1
