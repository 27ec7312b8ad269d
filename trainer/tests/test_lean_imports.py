"""A trainer starts without torch's compiler, which is there when something uses it."""

import os
import subprocess
import sys

import pytest

from trainer.tests.conftest import ROOT


def run(code: str, **environment: str) -> str:
    program = f"""if True:
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
        {code}
    """
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_trainer_that_works_alone_loads_neither_the_compiler_nor_distributed_tensors():
    left_out = '{"torch._dynamo.eval_frame", "torch.distributed.tensor", "sympy"}'
    adapt = (
        "from peft import LoraConfig, get_peft_model; "
        "get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=['0']))"
    )
    # A submodule is the hardest to replace.
    use = "import torch._dynamo.utils as utils; print(utils is torch._dynamo.utils)"
    assert run(f"{adapt}; print({left_out} & sys.modules.keys()); {use}") == "set()\nTrue"


@pytest.mark.full
@pytest.mark.parametrize(
    ("use", "prints"),
    [
        ("print(torch.distributed.tensor.Shard(0).dim)", "0"),
        ("print(torch._dynamo.config.recompile_limit > 0)", "True"),
        ("print(torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(2)).tolist())", "[2.0, 2.0]"),
    ],
)
def test_whoever_uses_the_compiler_gets_it(use, prints):
    assert run(use) == prints


@pytest.mark.full
def test_one_of_several_processes_has_distributed_tensors():
    assert run("print('torch.distributed.tensor' in sys.modules)", WORLD_SIZE="2") == "True"
