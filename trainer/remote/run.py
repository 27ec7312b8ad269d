"""One run of a training on a machine of a cluster: fetches its inputs, starts the trainer as the service would, reports
its lines, and passes on a stop.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trainer.remote.inputs import prepare
from trainer.remote.report import Reporter
from trainer.remote.service import RunEnded, Service, ServiceGone

PREFIX = "tunery-run-"
# Younger folders may be those of a run that is about to lock its own, or that runs on another machine of a mount.
LEFT_SECONDS = 86_400
LOG_CHARACTERS = 4000
# Between SIGTERM and SIGKILL for a trainer whose progress nobody wants any more.
UNWANTED_SECONDS = 5


@dataclass(frozen=True)
class Settings:
    """From the environment that the service gives the run. `python` has the trainer's packages, `processes` train
    together on each of `nodes` machines.
    """

    url: str
    token: str
    python: str
    processes: int
    nodes: int
    scratch: Path
    # Names the installation: its runs remove what its own killed runs have left, and nothing else.
    installation: str = "none"

    @classmethod
    def from_environment(cls) -> "Settings":
        """Reads the variables TUNERY_RUN_*. Raises KeyError without an address or a token."""
        env = os.environ
        return cls(
            url=env["TUNERY_RUN_URL"],
            token=env["TUNERY_RUN_TOKEN"],
            python=env.get("TUNERY_RUN_PYTHON", "python"),
            processes=int(env.get("TUNERY_RUN_PROCESSES", "1")),
            nodes=int(env.get("TUNERY_RUN_NODES", "1")),
            scratch=Path(env.get("TUNERY_RUN_DIR") or tempfile.gettempdir()),
            installation=env.get("TUNERY_RUN_INSTALLATION", "none"),
        )

    @property
    def code(self) -> Path:
        """The folder of the trainer's package on this machine, and of the converters."""
        return Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Member:
    """The place of this machine among those that train together: its number, and where the first one listens."""

    rank: int
    address: str
    port: int


@contextlib.contextmanager
def run_folder(scratch: Path, installation: str) -> Generator[Path]:
    """A folder of this run alone, removed at its end. Removes those that killed runs of the installation left."""
    scratch.mkdir(parents=True, exist_ok=True)
    prefix = f"{PREFIX}{installation}-"
    for left in scratch.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if _newest_time(left) > time.time() - LEFT_SECONDS:
                continue
            with (left / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            sys.stderr.write(f"removed {left}, which a killed run had left\n")
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch)).resolve()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _newest_time(folder: Path) -> float:
    """When anything in the folder was last changed, in seconds."""
    return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])


class Trainer:
    """The trainer's process, or torchrun's with those of this machine."""

    def __init__(self, settings: Settings, folder: Path, member: Member | None, on_line: Callable[[str], None]) -> None:
        program = ["-m", "trainer.cli.train", str(folder)]
        if settings.nodes > 1 and member:
            place = [f"--nnodes={settings.nodes}", f"--node-rank={member.rank}"]
            place += [f"--master-addr={member.address}", f"--master-port={member.port}"]
            program = ["-m", "torch.distributed.run", *place, f"--nproc-per-node={settings.processes}", *program]
        elif settings.processes > 1:
            together = ["--standalone", f"--nproc-per-node={settings.processes}"]
            program = ["-m", "torch.distributed.run", *together, *program]
        self.log = ""
        self._process = subprocess.Popen(
            [settings.python, *program],
            cwd=settings.code,
            env=_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._readers = [
            threading.Thread(target=self._read_lines, args=(on_line,), daemon=True),
            threading.Thread(target=self._read_log, args=(folder / "trainer.log",), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self, on_line: Callable[[str], None]) -> None:
        for line in self._process.stdout or ():
            on_line(line)

    def _read_log(self, file: Path) -> None:
        with file.open("a") as log:
            for text in self._process.stderr or ():
                log.write(text)
                log.flush()
                sys.stderr.write(text)
                self.log = (self.log + text)[-LOG_CHARACTERS:]

    def stop(self) -> None:
        """The trainer saves a checkpoint and ends."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Nobody wants its progress."""
        self.stop()
        threading.Timer(UNWANTED_SECONDS, self._process.kill).start()

    def wait(self) -> tuple[int | None, str | None]:
        """The exit status, or the name of the signal that ended it."""
        status = self._process.wait()
        for reader in self._readers:
            reader.join()
        return (status, None) if status >= 0 else (None, signal.Signals(-status).name)


def _environment(settings: Settings) -> dict[str, str]:
    """Without the run's token, and with the priority of a machine that has nothing else to do."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNERY_RUN_")}
    return {
        **kept,
        "PYTHONPATH": str(settings.code),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
        "TUNERY_TRAINING_PRIORITY": os.environ.get("TUNERY_TRAINING_PRIORITY", "normal"),
    }


def run(settings: Settings, member: Member | None = None) -> int:
    """Runs the training to its end, a stop, or the end of the run. Returns the status of this process: 0 when the
    service has heard how it ended.
    """
    service = Service(settings.url, settings.token)
    trainer: Trainer | None = None
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        if trainer:
            trainer.stop()

    def end() -> None:
        stopping.set()
        if trainer:
            trainer.end()

    with contextlib.suppress(ValueError):
        # Signals reach the main thread only: an actor of Ray may call this in another.
        signal.signal(signal.SIGTERM, stop)
    with run_folder(settings.scratch, settings.installation) as folder:
        reporter = Reporter(service, folder, stop, end)
        status, killed_by, log = None, None, ""
        try:
            prepare(service, folder, settings.scratch / "tunery-cache", settings.code / "converters")
            if not stopping.is_set():
                trainer = Trainer(settings, folder, member, lambda text: _take(text, reporter))
                # A stop may have come while it started.
                if stopping.is_set():
                    trainer.stop()
                status, killed_by = trainer.wait()
                log = trainer.log
        except RunEnded:
            return 0
        except (OSError, ServiceGone) as problem:
            traceback.print_exc()
            log = f"The run failed: {problem}"
        message = f"The trainer was ended by {killed_by}" if killed_by else f"The trainer ended with status {status}"
        reporter.add({"type": "exit", "message": message, "data": {"status": status, "signal": killed_by, "log": log}})
        reporter.close()
        return 1 if reporter.run_ended else 0


def _take(text: str, reporter: Reporter) -> None:
    parsed: Any = None
    with contextlib.suppress(ValueError):
        parsed = json.loads(text)
    line = cast(dict[str, Any], parsed if isinstance(parsed, dict) else {})
    if isinstance(line.get("type"), str) and isinstance(line.get("message"), str):
        reporter.add({"type": line["type"], "message": line["message"], "data": line.get("data") or {}})
    else:
        sys.stderr.write(f"not a trainer event: {text}\n")


def follow(settings: Settings, member: Member) -> int | None:
    """One of the other machines of a training over several: it only computes. Returns the exit status."""
    service = Service(settings.url, settings.token)
    with run_folder(settings.scratch, settings.installation) as folder:
        prepare(service, folder, settings.scratch / "tunery-cache", settings.code / "converters")
        trainer = Trainer(settings, folder, member, lambda _: None)
        return trainer.wait()[0]
