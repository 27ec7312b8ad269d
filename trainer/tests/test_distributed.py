"""Several processes train the same model as one does, and stop together."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from trainer.tests.conftest import ROOT


def start(folder, processes: int) -> subprocess.Popen:
    together = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    command = [sys.executable, *together, "-m", "trainer.cli.train", str(folder)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(folder, processes: int) -> list[dict]:
    process = start(folder, processes)
    lines = [json.loads(line) for line in process.stdout]
    assert process.wait() == 0
    return lines


@pytest.mark.full
def test_two_processes_train_the_same_and_report_once(job):
    changes = {"evaluation": {"split": 0.2, "every_steps": 5}, "training": {"epochs": 2}, "lora": {"dropout": 0}}
    alone, together = job("alone", **changes), job("together", **changes)
    lines = {folder: run(folder, processes) for folder, processes in ((alone, 1), (together, 2))}
    results = [[line for line in lines[folder] if line["type"] == "result"] for folder in (alone, together)]
    assert [len(found) for found in results] == [1, 1]
    losses = [
        [line["data"]["loss"] for line in lines[folder] if "loss" in line["data"] and line["type"] == "metrics"]
        for folder in lines
    ]
    torch.testing.assert_close(torch.tensor(losses[0][-1]), torch.tensor(losses[1][-1]), rtol=1e-2, atol=1e-3)
    one, two = (load_file(f"{found[0]['data']['folder']}/adapter_model.safetensors") for found in results)
    # Another order of summing changes the last digits, and the optimizer's first steps amplify that. A process that saw
    # only half a batch would change the first digits.
    for name, weight in one.items():
        assert (two[name] - weight).norm() < 0.1 * weight.norm(), name
    rows = [(folder / "out/rows.jsonl").read_text().splitlines() for folder in (alone, together)]
    assert len(rows[0]) == len(rows[1]), "every row's loss is known, whichever process it was dealt to"


@pytest.mark.full
def test_stopped_processes_leave_one_checkpoint_and_resume_from_it(job):
    folder = job("stopped", training={"epochs": 2000}, checkpoint={"every_steps": None})
    process = start(folder, 2)
    for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "metrics":
            process.send_signal(signal.SIGTERM)
            break
    rest = [json.loads(line) for line in process.stdout]
    assert process.wait() != 0
    [written] = [event["data"] for event in rest if event["type"] == "checkpoint"]
    again = job(
        "again",
        training={"epochs": 2000},
        checkpoint={"every_steps": None},
        resume_from=[{name: written[name] for name in ("path", "sha256", "step")}],
    )
    (again / "spec.json").write_text((again / "spec.json").read_text().replace("again.jsonl", "stopped.jsonl"))
    process = start(again, 2)
    for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "metrics":
            assert event["data"]["step"] > written["step"]
            break
    process.stdin.close()
    assert process.wait() != 0, "the end of the server ends all"
