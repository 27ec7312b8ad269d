"""A trainer starts without what it does not use, which is there when something uses it."""

import os
import subprocess
import sys
import textwrap

import pytest

from trainer.tests.conftest import ROOT

START = """
import sys
from trainer.runtime.process import configure_process, importing
configure_process(threads=1)
with importing():
    import trainer.run.loop, trainer.model.load, trainer.run.save
import torch
weights = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.AdamW([weights])
weights.sum().backward()
optimizer.step()
"""


def run(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_trainer_that_works_alone_loads_nothing_for_programs_that_compile_or_distribute():
    left_out = {
        "torch._dynamo.eval_frame",
        "torch.distributed.tensor",
        "torch._decomp",
        "torch.ao.quantization",
        "sympy",
    }
    loaded = run(
        f"""
        from peft import LoraConfig, get_peft_model
        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Embedding(2, 2, device="meta"))
        get_peft_model(layers, LoraConfig(target_modules=["0"]))
        from accelerate.utils import extract_model_from_parallel
        assert extract_model_from_parallel(layers) is layers
        print({left_out} & sys.modules.keys())
        """
    )
    assert loaded == "set()"


@pytest.mark.full
def test_what_was_left_out_is_there_when_something_uses_it():
    used = run(
        """
        print(torch.randn(1, generator=torch.Generator().manual_seed(1)).shape)
        sizes = [(1, 1, 2, 2, 2), (1, 1, 1, 1, 3)]
        values, places = (torch.empty(size, device="meta", requires_grad=True) for size in sizes)
        sampled = torch.nn.functional.grid_sample(values, places, align_corners=False)
        sampled.sum().backward()
        print(sampled.shape, places.grad.shape, "torch._decomp" in sys.modules)
        from torch.quantization import QConfig
        import torch.masked.maskedtensor.core as core
        print(QConfig is torch.ao.quantization.QConfig, core is torch.masked.maskedtensor.core)
        # A submodule is the hardest to replace.
        import torch._dynamo.utils as utils
        print(utils is torch._dynamo.utils)
        """
    ).splitlines()
    shapes = "torch.Size([1, 1, 1, 1, 1]) torch.Size([1, 1, 1, 1, 3]) True"
    assert used == ["torch.Size([1])", shapes, "True True", "True"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("use", "prints"),
    [
        ("print(torch.distributed.tensor.Shard(0).dim)", "0"),
        ("print(torch._dynamo.eval_frame.innermost_fn(print) is print)", "True"),
        ("print(torch._dynamo.config.recompile_limit > 0)", "True"),
        ("print(torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(2)).tolist())", "[2.0, 2.0]"),
    ],
)
def test_whoever_uses_the_compiler_gets_it(use, prints):
    assert run(use) == prints


@pytest.mark.full
def test_one_of_several_processes_has_distributed_tensors():
    assert run("print('torch.distributed.tensor' in sys.modules)", WORLD_SIZE="2") == "True"


@pytest.mark.full
def test_imports_ask_for_no_gpu():
    # CUDA reads which GPUs it may see when it is first asked: a prepared trainer imports before its run says so.
    asked = """
    import sys, torch
    def asked(*_, **__): sys.exit("a GPU was asked for")
    for name in ("is_available", "device_count", "current_device", "get_device_capability", "_lazy_init"):
        setattr(torch.cuda, name, asked)
    """
    code = textwrap.dedent(asked) + START.split("weights =")[0]
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
