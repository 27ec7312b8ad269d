"""What an adapter adds is part of the result in bfloat16, too, however small it is."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from trainer.model import fast_lora
from trainer.tests.conftest import DEVICE

TOKENS, INPUTS, OUTPUTS = 256, 96, 64
NAMES = ("q_proj", "k_proj", "v_proj")


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            setattr(self, name, torch.nn.Linear(INPUTS, OUTPUTS, bias=False))


def adapted(scale: float):
    """Three layers with one input in bfloat16, whose adapters add about `scale` times the layers' own results."""
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=list(NAMES))
    model = get_peft_model(Layers().to(DEVICE, torch.bfloat16), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1 * scale)
    return [getattr(model.base_model.model, name) for name in NAMES]


@pytest.mark.parametrize("scale", [0.1, 0.001, 0.0003])
def test_a_small_addition_is_not_rounded_away(scale):
    layers = adapted(scale)
    x = torch.randn(TOKENS, INPUTS, device=DEVICE).bfloat16()
    weights = [layer.base_layer.weight.float().clone() for layer in layers]
    additions = [
        layer.scaling["default"]
        * x.float()
        @ layer.lora_A["default"].weight.float().T
        @ layer.lora_B["default"].weight.float().T
        for layer in layers
    ]
    group = fast_lora.LinearGroup(layers)
    joint, _ = group.forward(x)
    for result, weight, addition in zip(group.outputs_of(joint), weights, additions, strict=True):
        # Each result is rounded; over thousands of them the addition is there in full.
        change = result.float() - (x.float() @ weight.T)
        share = float((change * addition).sum() / addition.square().sum())
        rounding = float(addition.square().sum().rsqrt()) * float(result.float().abs().mean()) * 2**-9
        assert share == pytest.approx(1, abs=0.02 + 4 * rounding)
