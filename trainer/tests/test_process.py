"""The trainer as a process with pipes, signals and an exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trainer.tests.conftest import ROOT


def start(folder: Path) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "trainer.cli.train", str(folder)], cwd=ROOT, **pipes)


def lines_until(process: subprocess.Popen, type: str, **expected) -> list[dict]:
    """Reads lines until one of `type` whose data has the expected values. Every line must be valid JSON of the
    protocol.
    """
    lines = []
    for raw in process.stdout:
        line = json.loads(raw)
        assert set(line) == {"type", "message", "data"}
        lines.append(line)
        if line["type"] == type and expected.items() <= line["data"].items():
            return lines
    pytest.fail(f"no such line; the last ones: {lines[-3:]}\n{process.stderr.read().decode()}")


LONG = {"training": {"epochs": 50}, "checkpoint": {"every_steps": 25}}


@pytest.mark.full
def test_killed_and_resumed_the_adapter_is_the_same_to_the_bit(job):
    changes = {"training": {"epochs": 6}, "checkpoint": {"every_steps": 2, "keep": 50}}
    whole = start(job("whole", **changes))
    lines = lines_until(whole, "result")
    assert whole.wait(10) == 0
    assert whole.stdout.read() == b""
    assert [line["data"]["phase"] for line in lines if line["type"] == "status"] == [
        "preparing",
        "loading",
        "training",
        "converting",
    ]
    assert [line["type"] for line in lines].count("error") == 0

    killed = start(job("killed", **changes))
    seen = lines_until(killed, "checkpoint", step=10)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    candidates = [line["data"] for line in reversed(seen) if line["type"] == "checkpoint"][:2]
    resume = [{key: candidate[key] for key in ("path", "sha256", "step")} for candidate in candidates]
    resumed = start(job("resumed", resume_from=resume, **changes))
    after = lines_until(resumed, "result")
    (training,) = [line for line in after if line["data"].get("phase") == "training"]
    assert training["data"]["resumed_from_step"] == 10

    one, other = lines[-1]["data"], after[-1]["data"]
    assert {key: one[key] for key in ("train_loss", "trained_tokens", "steps")} == {
        key: other[key] for key in ("train_loss", "trained_tokens", "steps")
    }
    weights = [load_file(Path(result["folder"]) / "adapter_model.safetensors") for result in (one, other)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert one["gguf_sha256"] == other["gguf_sha256"]


def test_the_trainer_ends_with_its_server(job):
    process = start(job(**LONG))
    lines_until(process, "status", phase="training")
    process.stdin.close()
    began = time.monotonic()
    assert process.wait(60) == 74
    # Two seconds, and longer where more programs want to run than there are cores.
    assert time.monotonic() - began < 2 * max(1, os.getloadavg()[0] / os.cpu_count())


@pytest.mark.full
def test_counting_ends_with_its_server(tiny, tmp_path):
    rows = tmp_path / "rows"
    os.mkfifo(rows)
    request = {"hf": str(tiny), "rows": str(rows), "max_length": 64, "objective": "sft"}
    command = [sys.executable, "-m", "trainer.cli.count", json.dumps(request)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    # It waits for rows once it has opened the pipe, which can be opened here from then on.
    while process.poll() is None:
        with suppress(OSError):
            end = os.open(rows, os.O_WRONLY | os.O_NONBLOCK)
            break
        time.sleep(0.05)
    process.stdin.close()
    assert process.wait(10) == 74
    os.close(end)


@pytest.mark.full
def test_workers_count_a_large_file_alike_and_end_with_a_killed_server(tiny, tmp_path):
    rows = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "some words " * 200}, {"role": "assistant", "content": "Yes."}]}
    rows.write_text((json.dumps(row) + "\n") * 8000)
    request = {"hf": str(tiny), "rows": str(rows), "max_length": 300, "objective": "sft"}

    def command(workers: int) -> list[str]:
        return [sys.executable, "-m", "trainer.cli.count", json.dumps({**request, "workers": workers})]

    one, two = (subprocess.run(command(workers), cwd=ROOT, capture_output=True, check=True) for workers in (1, 2))
    assert json.loads(one.stdout) == json.loads(two.stdout)
    assert json.loads(one.stdout)["cut"][99]["line"] == 100
    process = subprocess.Popen(command(2), cwd=ROOT, stdin=subprocess.PIPE)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(workers := children.read_text().split()) < 2:
        time.sleep(0.01)
    process.kill()
    process.wait()
    wait_until = time.monotonic() + 10
    while any(running(pid) for pid in workers):
        assert time.monotonic() < wait_until
        time.sleep(0.01)


def running(pid: str) -> bool:
    """Whether a process has not ended; one that nobody waits for has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


@pytest.mark.parametrize(
    ("work", "status", "line"),
    [
        ("return None", 0, None),
        ("return 3", 3, None),
        ("raise JobError('storage_full', 'full', line=2)", 1, {"code": "storage_full", "line": 2}),
        ("raise MemoryError", 1, {"code": "out_of_memory"}),
        ("raise KeyError", 1, None),
    ],
)
def test_a_program_ends_with_its_status_and_at_most_one_error_line(work, status, line):
    code = f"""if True:
        from trainer.runtime.errors import JobError, explain
        from trainer.runtime.protocol import run_program
        def main(protocol):
            {work}
        run_program(main, explain=lambda problem: None if isinstance(problem, KeyError) else explain(problem))
    """
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL)
    lines = [json.loads(each)["data"] for each in run.stdout.splitlines()]
    assert (run.returncode, lines) == (status, [line] if line else [])
    assert (b"Traceback" in run.stderr) == work.startswith("raise")


@pytest.mark.full
def test_sigterm_leaves_a_checkpoint(job):
    folder = job(**LONG)
    process = start(folder)
    lines_until(process, "checkpoint", step=25)
    lines_until(process, "metrics")
    process.send_signal(signal.SIGTERM)
    rest = [json.loads(line) for line in process.stdout]
    assert process.wait(10) == 75
    last = [line["data"] for line in rest if line["type"] == "checkpoint"][-1]
    assert last["step"] > 25
    assert (Path(last["path"]) / "manifest.json").exists()
    assert not (folder / "out").exists()


def test_a_stop_does_not_wait_for_interruptible_work():
    code = """if True:
        import os, signal, time
        from trainer.runtime.protocol import Protocol, StopRequested
        protocol = Protocol()
        protocol.watch()
        protocol.steps_begin()
        try:
            with protocol.interruptible():
                protocol.emit("log", "at work")
                time.sleep(600)
        except StopRequested:
            protocol.emit("log", "dropped", asked=protocol.stop_requested)
    """
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert json.loads(process.stdout.readline())["message"] == "at work"
    process.send_signal(signal.SIGTERM)
    assert json.loads(process.stdout.readline()) == {"type": "log", "message": "dropped", "data": {"asked": True}}
    assert process.wait(10) == 0


def test_a_trial_beside_other_work_tells_the_time_without_it():
    from trainer.cli.estimate import idle_seconds

    idle, disturbed = (1.0, 2.0), (4.0, 2.1)
    assert idle_seconds([idle, disturbed, disturbed], on_cpu=True) == pytest.approx(3.1)
    assert idle_seconds([idle, disturbed], on_cpu=False) == 5.0


def test_the_estimate_follows_the_speed_at_once():
    from trainer.run.progress import Estimate

    estimate = Estimate(tokens_total=10_000, tokens_done=0)
    for _ in range(20):
        estimate.step(tokens=100, seconds=1.0, cpu_seconds=2.0)
    assert estimate.seconds_left() == 80 + 2
    # Other work leaves the process a fifth of the cores: the same processor time, five times as long.
    for _ in range(2):
        estimate.step(tokens=100, seconds=5.0, cpu_seconds=2.0)
    assert estimate.seconds_left() == 78 * 5 + 2
    for _ in range(10):
        estimate.step(tokens=100, seconds=1.0, cpu_seconds=2.0)
    assert estimate.seconds_left() == 68 + 2


def test_a_failure_is_one_error_line_and_status_1(job):
    process = start(job(text='{"messages":[]}\n'))
    lines = lines_until(process, "error")
    assert lines[-1]["data"] == {"code": "dataset_invalid", "line": 1}
    assert process.wait(10) == 1
    assert process.stdout.read() == b""


def test_a_full_disk_has_its_code(tmp_path):
    import torch

    from trainer.runtime.errors import explain

    # A link: renaming over it replaces the link, not the machine's device.
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    for write in [lambda: full.write_text("x"), lambda: torch.save(torch.zeros(9), str(full))]:
        with pytest.raises((OSError, RuntimeError)) as raised:
            write()
        assert explain(raised.value).code == "storage_full", repr(raised.value)


def test_an_unexpected_failure_shows_no_paths():
    from trainer.runtime.errors import explain

    message = str(explain(FileNotFoundError(2, "No such file", "/srv/data/runs/job_1/rows.jsonl")))
    assert message.endswith("rows.jsonl: No such file") and "/srv" not in message
    assert "1/2 of https://example.com/a/b" in str(explain(ValueError("1/2 of https://example.com/a/b")))


LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
from trainer.runtime.process import lower_priority
lower_priority(sys.argv[2])
print(flush=True)
while True:
    pass
"""


def cpu_seconds(process: subprocess.Popen) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("priority", "least", "most"),
    [("idle", 0, 0.05), ("low", 0.15, 0.4), pytest.param("normal", 0.4, 0.6, marks=pytest.mark.full)],
)
def test_the_priority_decides_the_share_of_a_core_that_is_busy(priority, least, most):
    core = str(min(os.sched_getaffinity(0)))
    loops = [
        subprocess.Popen([sys.executable, "-c", LOOP, core, each], cwd=ROOT, stdout=subprocess.PIPE)
        for each in (priority, "normal")
    ]
    try:
        for loop in loops:
            loop.stdout.readline()
        before = [cpu_seconds(loop) for loop in loops]
        used = [0.0, 0.0]
        # Other programs of the machine take from both.
        while sum(used) < 1:
            time.sleep(0.05)
            used = [cpu_seconds(loop) - first for loop, first in zip(loops, before, strict=True)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert least <= used[0] / sum(used) <= most
