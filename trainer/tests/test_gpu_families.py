"""Families of today's models on an NVIDIA GPU: a pack has the losses and gradients of the CPU's in float32.
`TRAINER_TEST_DEVICE=cpu` shows what bfloat16 alone changes.
"""

import os

import pytest
import torch

from tests.families import packing
from tests.families.checkpoints import FAMILIES, write
from trainer.data.packing import pack
from trainer.model import gpu, load, targets
from trainer.run.evaluate import losses
from trainer.runtime.hyperparameters import Lora
from trainer.runtime.spec import Base, ModelSpec
from trainer.tests.conftest import CONVERTERS

CPU, DEVICE = torch.device("cpu"), torch.device(os.environ.get("TRAINER_TEST_DEVICE", "cuda"))
pytestmark = pytest.mark.skipif(
    "TRAINER_TEST_DEVICE" not in os.environ and not torch.cuda.is_available(), reason="there is no GPU here"
)
Tensors = dict[str, torch.Tensor]


def trained(spec: ModelSpec, device: torch.device, dtype: torch.dtype, factors: Tensors | None = None):
    """The loss of each learned token of a pack, and the gradients and weights of an adapter, which are `factors`."""
    gpu.select_device(device)
    # Some families leave numbers out at random while they train.
    model = load.with_adapter(load.load_base(spec, device, dtype), spec).eval()
    parameters = load.trainable(model)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(parameters.items()):
            torch.manual_seed(number)
            if factors:
                parameter.copy_(factors[name])
            elif "lora_B" in name:
                parameter.normal_(std=0.05)
    found = losses(model, pack(packing.rows(), device))
    found.mean().backward()
    gradients = {name: weight.grad.cpu() for name, weight in parameters.items() if weight.grad is not None}
    return found.detach().float().cpu(), gradients, {name: weight.detach() for name, weight in parameters.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pack_trains_as_on_the_cpu(name, tmp_path):
    write(name, tmp_path)
    usable = targets.targets_of(tmp_path, CONVERTERS)
    lora = Lora(r=4, alpha=8, target_modules=usable["linear_modules"], experts="expert_weights" in usable)
    spec = ModelSpec(
        job_id="", base=Base("", str(tmp_path)), method="lora", lora=lora, start=None, threads=1, converters=""
    )
    expected, exact, factors = trained(spec, CPU, torch.float32)
    result, gradients, _ = trained(spec, DEVICE, torch.bfloat16, factors)
    assert gradients.keys() == exact.keys()
    assert float((result - expected).abs().mean()) < 0.02
    joint, joint_exact = (torch.cat([part[each].flatten() for each in exact]) for part in (gradients, exact))
    assert float(torch.cosine_similarity(joint, joint_exact, dim=0)) > 0.95
