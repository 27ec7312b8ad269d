"""Processes that share a base's weights train as one process does, resume exactly, and end together."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainer.runtime.distributed import Distributed
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests.test_distributed import losses, start

# Two epochs of three steps, of 24 rows or the 19 that are not held out: then the last batch has one row, and one
# process no pass of it.
SIX_STEPS = {"training": {"epochs": 2, "batch_size": 9}, "sharded": True}


def events_of(process: subprocess.Popen) -> list[dict]:
    return [json.loads(line) for line in process.stdout]


def run(folder: Path, processes: int = 2) -> list[dict]:
    process = start(folder, processes)
    events = events_of(process)
    assert process.wait() == 0, events[-1]
    return events


def result_of(events: list[dict]) -> dict[str, torch.Tensor]:
    [result] = [event["data"] for event in events if event["type"] == "result"]
    return load_file(f"{result['folder']}/adapter_model.safetensors")


def resuming(job, folder: Path, events: list[dict], name: str, **changes) -> Path:
    """A run on the rows of another from a copy of its checkpoint that was written last: a run removes those before."""
    written = [event["data"] for event in events if event["type"] == "checkpoint"][-1]
    copy = shutil.copytree(written["path"], folder.parent / f"{name}-checkpoint")
    candidate = {"path": str(copy), "sha256": written["sha256"], "step": written["step"]}
    again = job(name, resume_from=[candidate], **changes)
    spec = (again / "spec.json").read_text().replace(f"{name}.jsonl", f"{folder.name}.jsonl")
    (again / "spec.json").write_text(spec)
    return again


def members(agent: int) -> dict[int, int]:
    """The ids of the processes of a run by their rank."""
    found = subprocess.run(["pgrep", "-P", str(agent), "-f", "trainer.cli.train"], capture_output=True, text=True)
    ranks = {}
    for pid in map(int, found.stdout.split()):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                ranks[int(entry[5:])] = pid
    return ranks


@pytest.mark.full
def test_two_processes_with_a_part_of_the_weights_train_as_one_with_all(job, loop_of):
    evaluation = {"split": 0.2, "prompts": [[{"role": "user", "content": "Item 3?"}]], "answer_tokens": 4}
    folder = job("together", **SIX_STEPS, evaluation={**evaluation, "every_steps": 2})
    events = run(folder)
    found = losses(events)
    assert [event["data"]["steps_total"] for event in events if "sharded" in event["data"]] == [6]
    alone = loop_of(job("alone", **{**SIX_STEPS, "sharded": False}, evaluation={**evaluation, "every_steps": 2}))
    expected: dict[int, float] = {}
    while alone.totals.step < alone.steps_total:
        loss, *_ = alone.step(alone.batch(alone.totals.step))
        alone.totals.step += 1
        expected[alone.totals.step] = loss
    assert list(found) == list(expected) == [1, 2, 3, 4, 5, 6]
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, abs=1e-4), step
    [result] = [event for event in events if event["type"] == "result"]
    assert [event["type"] for event in events].count("sample") == 3, "the first alone reports"
    for name, weight in result_of(events).items():
        trained = alone.parameters[name.replace(".weight", ".default.weight")]
        assert torch.allclose(weight, trained, atol=1e-3), name
    [prepared] = [event["data"] for event in events if "processes" in event["data"]]
    assert (prepared["processes"], prepared["sharded"]) == (2, True)
    assert result["data"]["gguf_sha256"]


@pytest.mark.full
def test_a_killed_run_resumes_as_if_it_had_not_been_and_with_another_number_of_processes(job):
    policy = {"checkpoint": {"every_seconds": None, "every_steps": 2}}
    whole = run(job("whole", **SIX_STEPS, **policy))
    folder = job("killed", **SIX_STEPS, **policy)
    process = start(folder, 2)
    seen = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if seen[-1]["type"] == "checkpoint":
            process.kill()
            break
    # The others end with their launcher, whose end closes their stdin.
    process.stdin.close()
    seen += events_of(process)
    process.wait()
    last = [event["data"]["step"] for event in seen if event["type"] == "checkpoint"][-1]
    assert last < 6, "it was killed before its end"
    again = run(resuming(job, folder, seen, "again", **SIX_STEPS, **policy))
    rest = {step: loss for step, loss in losses(whole).items() if step > last}
    assert losses(again) == rest, "bit for bit"
    assert all(torch.equal(weight, result_of(again)[name]) for name, weight in result_of(whole).items())
    alone = run(resuming(job, folder, seen, "alone", **SIX_STEPS, **policy), 1)
    assert losses(alone) == pytest.approx(rest, abs=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_one_process_ends_all_within_seconds_and_says_so(job, rank):
    process = start(job("killed", **{**SIX_STEPS, "training": {"epochs": 500, "batch_size": 9}}), 2)
    for line in process.stdout:
        if json.loads(line)["type"] == "metrics":
            break
    pids = members(process.pid)
    os.kill(pids[rank], signal.SIGKILL)
    killed_at = time.monotonic()
    rest = events_of(process)
    assert process.wait() != 0
    assert time.monotonic() - killed_at < 10
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    warnings = [event["message"] for event in rest if event["type"] == "warning"]
    assert warnings == [
        f"Of the 2 processes that train together, number {rank + 1} ended before its work was done, so all were ended."
    ]
    assert not any(event["type"] == "error" for event in rest), "it is tried again"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "qlora"}, "The method qlora"),
        ({"method": "full", "lora": None}, "The method full"),
        ({"options": {"objective": "dpo"}}, "The objective dpo"),
        ({"merge": True}, "A result that is merged into its base"),
    ],
)
def test_what_devices_cannot_share_is_refused_in_a_sentence(job, changes, words):
    from trainer.model.sharded import require_shareable

    with pytest.raises(JobError) as refused:
        require_shareable(read_spec(job(**changes)), sees=False)
    assert refused.value.code == "not_supported"
    assert str(refused.value).startswith(f"{words} cannot be trained with weights that several devices share")


def test_a_process_alone_shares_nothing():
    assert not Distributed(sharded=True).sharded
