"""Seeds, schedules, checkpoints and resuming, in this process."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from trainer.run import checkpoint
from trainer.run.schedule import learning_rate, order_of
from trainer.runtime.errors import JobError
from trainer.tests.conftest import Recorder


def weights(loop) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in loop.parameters.items()}


def assert_same(one: dict, other: dict) -> None:
    assert all(torch.equal(one[name], other[name]) for name in one)


def stop_after(loop, step: int) -> list[dict]:
    """Runs up to `step`, then stops as on SIGTERM. Returns the checkpoints that a server would pass to the next
    attempt.
    """
    protocol = loop.protocol
    protocol.metrics_due = lambda last: setattr(protocol, "stop_requested", loop.totals.step >= step) or True
    assert loop.run() is False
    return [
        {"path": data["path"], "sha256": data["sha256"], "step": data["step"]}
        for data in reversed(protocol.of("checkpoint"))
    ]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="lora"),
        pytest.param({"lora": {"dropout": 0.1}}, id="dropout", marks=pytest.mark.full),
        pytest.param({"method": "qlora"}, id="qlora", marks=pytest.mark.full),
        pytest.param({"method": "full", "lora": None}, id="full", marks=pytest.mark.full),
    ],
)
def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(job, loop_of, settings):
    whole = loop_of(job("whole", **settings))
    assert whole.run()
    candidates = stop_after(loop_of(job("first", **settings)), 9)
    second = loop_of(job("second", **settings, resume_from=candidates))
    assert second.totals.step == 9
    assert second.run()
    assert_same(weights(whole), weights(second))
    assert (second.totals.tokens, second.train_loss) == (whole.totals.tokens, whole.train_loss)


def test_the_seed_decides_the_weights(job, loop_of):
    runs = {
        name: loop_of(job(name, training={"epochs": 1, "seed": seed})) for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    }
    for loop in runs.values():
        loop.run()
    assert_same(weights(runs["a"]), weights(runs["b"]))
    assert not torch.equal(next(iter(weights(runs["a"]).values())), next(iter(weights(runs["c"]).values())))


def test_damaged_and_foreign_checkpoints_are_skipped_with_a_warning(job, loop_of, tmp_path):
    candidates = stop_after(loop_of(job("first")), 9)
    torn = tmp_path / "torn"
    shutil.copytree(candidates[0]["path"], torn)
    file = torn / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    gone = {"path": str(tmp_path / "gone"), "sha256": "0", "step": 12}
    protocol = Recorder()
    loop = loop_of(job("second", resume_from=[gone, {**candidates[0], "path": str(torn)}, candidates[1]]), protocol)
    assert loop.totals.step == candidates[1]["step"] == 8
    assert len(protocol.of("warning")) == 2

    protocol = Recorder()
    other = loop_of(job("other", training={"seed": 7}, resume_from=candidates), protocol)
    assert other.totals.step == 0
    assert "from the beginning" in protocol.events[-1][1]


def test_a_partly_written_checkpoint_is_not_used(job, loop_of, monkeypatch):
    def cut_off(_: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "sha256_of", cut_off)
    loop = loop_of(job())
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert [path.name for path in loop.folder.iterdir()] == ["step-4.tmp"]
    monkeypatch.undo()
    assert loop_of(loop.folder.parent).run()


def test_a_checkpoint_without_room_is_not_begun_and_the_next_attempt_resumes(job, loop_of):
    candidates = stop_after(loop_of(job("first")), 5)
    full = loop_of(job("full", resume_from=candidates, checkpoint={"min_free_mb": 1e9}))
    with pytest.raises(JobError) as raised:
        full.run()
    assert raised.value.code == "storage_full"
    assert list(full.folder.iterdir()) == []
    assert loop_of(job("second", resume_from=candidates)).run()


def test_the_newest_checkpoints_of_all_attempts_stay(job, loop_of, tmp_path):
    def on_disk() -> list[str]:
        return sorted(f"{path.parts[-3]} {path.name}" for path in tmp_path.glob("*/checkpoints/step-*"))

    candidates = stop_after(loop_of(job("a")), 9)
    assert on_disk() == ["a step-8", "a step-9"]
    candidates = stop_after(loop_of(job("b", resume_from=candidates)), 10) + candidates
    assert on_disk() == ["a step-9", "b step-10"]
    stop_after(loop_of(job("c", resume_from=candidates)), 11)
    assert on_disk() == ["b step-10", "c step-11"]


def test_only_the_newest_checkpoints_stay(job, loop_of):
    loop = loop_of(job())
    loop.run()
    assert sorted(path.name for path in loop.folder.iterdir()) == ["step-20", "step-24"]


def test_a_run_reports_metrics_and_progress(job, loop_of):
    loop = loop_of(job())
    loop.run()
    metrics, progress = loop.protocol.of("metrics"), loop.protocol.of("progress")
    assert [line["step"] for line in metrics] == list(range(1, 25))
    assert metrics[-1]["epoch"] == 4
    assert metrics[-1]["tokens"] == loop.data.tokens * 4
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert all(line["memory_mb"] > 100 and line["cpu_cores"] > 0 for line in metrics)
    shares = [line["progress"] for line in progress]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1
    assert progress[0]["seconds_left"] is None
    assert progress[-1]["seconds_left"] is not None


def test_the_losses_of_all_steps_are_reported_before_a_checkpoint(job, loop_of):
    class Rare(Recorder):
        def metrics_due(self, last: bool) -> bool:
            return last

    protocol = Rare()
    loop_of(job(), protocol).run()
    reported: list[int] = []
    for kind, _, data in protocol.events:
        if kind == "metrics":
            reported += [step for step, _ in data.get("losses", [])]
        if kind == "checkpoint":
            assert data["losses"] == []
            assert reported == list(range(1, data["step"] + 1))


def test_a_non_finite_loss_ends_the_run_with_advice(job, loop_of):
    with pytest.raises(JobError, match="Lower the learning rate") as raised:
        loop_of(job(training={"learning_rate": 1e38})).run()
    assert raised.value.code == "non_finite_loss"
    json.dumps(raised.value.data, allow_nan=False)


def test_the_order_is_shuffled_by_seed_and_epoch():
    orders = [order_of(0, 50, 1), order_of(1, 50, 1), order_of(0, 50, 2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in [*orders, list(range(50))]}) == 4
    assert orders[0] == order_of(0, 50, 1)


def test_the_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 1.0, 0.05, "cosine") for step in range(100)]
    assert rates[:5] == sorted(rates[:5])
    assert max(rates) == rates[5] == 1.0
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.001
