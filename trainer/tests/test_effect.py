"""Each layer that an adapter may change moves what the model says, in the trainer and in the engine alike."""

import re

import pytest
import torch

from trainer.model import load, targets
from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.model.experts import describe_to_peft
from trainer.run import base_check
from trainer.runtime.hyperparameters import Lora
from trainer.runtime.spec import Base, ModelSpec
from trainer.tests.test_base_check import CONVERTERS, ENGINE

# Kernels keep what they saw, which a tensor of inference mode does not allow.
log_probabilities = torch.no_grad()(base_check.log_probabilities.__wrapped__)


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_moe",
        pytest.param("deepseek_v3", marks=pytest.mark.full),
        pytest.param("granite_h", marks=pytest.mark.full),
        pytest.param("qwen3_5_text", marks=pytest.mark.full),
    ],
)
def test_each_target_has_the_trainers_effect_in_the_engine(prepared, tmp_path, name):
    """A delta rule, experts, latent attention and Mamba2: a change of one kind of layer at a time."""
    folder = prepared(name)
    base = folder / "hf"
    usable = targets.targets_of(base, CONVERTERS)
    lora = Lora(r=4, alpha=8, target_modules=usable["linear_modules"], experts="expert_weights" in usable)
    spec = ModelSpec(
        job_id="", base=Base("", str(base)), method="lora", lora=lora, start=None, threads=1, converters=""
    )
    model = load.load_base(spec, torch.device("cpu"), torch.float32)
    model.set_attn_implementation("eager")
    rows = base_check.random_rows(base)
    plain = log_probabilities(model.eval(), rows)
    model = load.with_adapter(model, spec).eval()
    factors = {part: weight for part, weight in load.trainable(model).items() if "lora_B" in part}
    kinds = {re.sub(r"\.\d+\.", ".", part) for part in factors}
    assert len(kinds) >= len(usable["linear_modules"])
    for number, kind in enumerate(sorted(kinds)):
        torch.manual_seed(number)
        for part, weight in factors.items():
            torch.nn.init.normal_(weight, std=0.3 * (re.sub(r"\.\d+\.", ".", part) == kind))
        adapter = tmp_path / str(number)
        model.save_pretrained(adapter, save_embedding_layers=False)
        describe_to_peft(model, adapter)
        write_adapter_gguf(CONVERTERS, base, adapter, adapter / "adapter.gguf", "f32")
        change = log_probabilities(model, rows) - plain
        scores = ENGINE.score(folder / "model.gguf", rows, adapter / "adapter.gguf")
        served, size = scores["adapter"] - scores["base"], change.abs().mean()
        assert size > 1e-4, f"{kind} changes nothing in the trainer"
        assert (served - change).abs().mean() < 0.3 * size + 1e-3, f"{kind} changes the engine otherwise"
        assert served.abs().mean() > 0.5 * size, f"{kind} changes nothing in the engine"
