"""Families of today's models learn from answers and from preferences, and a run that is resumed ends as one that was
not interrupted.
"""

import pytest

from tests.families.checkpoints import write
from trainer.model import targets
from trainer.tests.conftest import CONVERTERS, conversations
from trainer.tests.test_loop import assert_same, stop_after, weights
from trainer.tests.test_preferences import PAIRS, RATED, lines

TEXTS = {"dpo": lines(PAIRS), "kto": lines(RATED)}


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        # A delta rule, Mamba2, and adapted experts of two kinds.
        ("qwen3_5_text", "dpo"),
        pytest.param("granite_h", "kto", marks=pytest.mark.full),
        ("qwen3_moe", "sft"),
        pytest.param("gpt_oss", "dpo", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_a_resumed_run_of_a_family_ends_with_the_same_weights(job, loop_of, tmp_path, name, objective, precision):
    base = tmp_path / name
    write(name, base)
    usable = targets.targets_of(base, CONVERTERS)
    lora = {"target_modules": usable["linear_modules"], "experts": "expert_weights" in usable}
    changes = {"base": {"path": str(base)}, "lora": lora, "options": {"objective": objective}}
    text = TEXTS.get(objective)
    rows = None if text else conversations()

    def loop(run: str, **more):
        return loop_of(job(run, rows=rows, text=text, **changes, **more), precision=precision)

    whole = loop("whole")
    assert whole.run()
    candidates = stop_after(loop("first"), 5)
    second = loop("second", resume_from=candidates)
    assert second.totals.step == 5 and second.run()
    assert_same(weights(whole), weights(second))
    assert all(bool(weight.isfinite().all()) for weight in weights(whole).values())
