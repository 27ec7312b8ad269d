"""A run's memory is predicted before loading, and a run that cannot fit is refused with the numbers."""

import pytest
import torch

from trainer.run import memory
from trainer.run.prepare import prepare_run
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import Recorder
from trainer.tests.make_tiny import TOKENIZER


def test_a_run_that_cannot_fit_is_refused_before_the_base_is_loaded(job, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 300e6)
    folder, protocol = job(), Recorder()
    with pytest.raises(JobError, match=r"GB of memory, and 0\.3 GB are free") as raised:
        prepare_run(read_spec(folder), folder, protocol)
    assert raised.value.code == "out_of_memory"
    assert raised.value.data["available_mb"] == 300 < raised.value.data["predicted_mb"]
    assert [data["phase"] for data in protocol.of("status")] == ["preparing"]


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda")], ids=str)
def test_longer_rows_and_full_training_need_more_memory(job, device):
    from transformers import AutoConfig

    def predicted(tokens: int, **changes) -> float:
        spec = read_spec(job(f"run-{tokens}-{len(changes)}", **changes))
        return memory.predicted_bytes(
            memory.shape_of(AutoConfig.from_pretrained(spec.base.path)), spec, 4, tokens, tokens // 2, device
        )

    assert predicted(100) < predicted(1000) < predicted(8000) < predicted(8001, method="full", lora=None)


@pytest.mark.parametrize(("tokens", "targets", "peak"), [(208, 44, 1749e6), (528, 204, 2269e6)])
def test_small_runs_need_what_is_predicted(job, tokens, targets, peak):
    """Peaks of SmolLM2-135M in float32, r 16, without kernels; docs/performance.md has them."""
    from transformers import AutoConfig

    spec = read_spec(job(lora={"r": 16}))
    shape = memory.shape_of(AutoConfig.from_pretrained(TOKENIZER))
    assert memory.predicted_bytes(shape, spec, 4, tokens, targets, torch.device("cpu")) == pytest.approx(peak, rel=0.05)
