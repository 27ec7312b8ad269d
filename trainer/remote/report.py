"""Reports a trainer's lines to the service, in order and each once, and uploads the files that they name before."""

import contextlib
import json
import queue
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.remote.inputs import link
from trainer.remote.service import RunEnded, Service, ServiceGone

BATCH_LINES = 500
# A pause between posts, so that fast steps share one.
POST_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0


class Reporter:
    """Numbers lines from 1 and posts them in order. `on_stop` is called once when the service wants the run to stop and
    keep its progress, `on_end` once when it no longer wants the run.
    """

    def __init__(self, service: Service, folder: Path, on_stop: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._service, self._folder, self._on_stop, self._on_end = service, folder, on_stop, on_end
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # Checkpoints whose line is not posted yet; only the last of them is worth its upload.
        self._checkpoints = 0
        self._lock = threading.Lock()
        self._posted_at = 0.0
        self._stop_told = False
        self._ended = threading.Event()
        self._poster = threading.Thread(target=self._guarded, args=(self._post_all,), daemon=True)
        self._poster.start()
        threading.Thread(target=self._guarded, args=(self._beat,), daemon=True).start()

    @property
    def run_ended(self) -> bool:
        """Whether the service no longer wants the run, or is gone for good."""
        return self._ended.is_set()

    def add(self, line: dict[str, Any]) -> None:
        """Takes a trainer's line. The files of a checkpoint are kept for its upload, whatever the trainer removes."""
        if line["type"] == "checkpoint":
            path = Path(line["data"]["path"])
            kept = self._folder / "outbox" / path.name
            with contextlib.suppress(OSError):
                shutil.rmtree(kept, ignore_errors=True)
                kept.mkdir(parents=True)
                for file in path.iterdir():
                    link(file, kept / file.name)
            with self._lock:
                self._checkpoints += 1
        self._lines.put(line)

    def close(self) -> None:
        """Waits until all lines are with the service, or it no longer wants them."""
        self._lines.put(None)
        self._poster.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:
            if not isinstance(problem, RunEnded | ServiceGone):
                traceback.print_exc()
            if not self._ended.is_set():
                self._ended.set()
                print(f"The run ends: {problem}.", flush=True)
                self._on_end()

    def _post_all(self) -> None:
        number, last = 1, False
        while not last:
            batch, last = self._next_batch()
            for lines in _split_before_files(batch):
                self._post(number, [self._with_files(line) for line in lines])
                number += len(lines)
            time.sleep(POST_SECONDS)

    def _next_batch(self) -> tuple[list[dict[str, Any]], bool]:
        """The waiting lines, at least one or the end, and whether they are the last."""
        batch = [self._lines.get()]
        with contextlib.suppress(queue.Empty):
            while batch[-1] is not None and len(batch) < BATCH_LINES:
                batch.append(self._lines.get_nowait())
        return [line for line in batch if line is not None], batch[-1] is None

    def _post(self, first: int, lines: list[dict[str, Any]]) -> None:
        answer = self._service.post("lines", {"first": first, "lines": lines})
        self._posted_at = time.monotonic()
        if answer["stop"] and not self._stop_told:
            self._stop_told = True
            self._on_stop()

    def _beat(self) -> None:
        while not self._ended.is_set() and self._poster.is_alive():
            if time.monotonic() - self._posted_at >= HEARTBEAT_SECONDS:
                self._post(0, [])
            time.sleep(HEARTBEAT_SECONDS / 4)

    def _with_files(self, line: dict[str, Any]) -> dict[str, Any]:
        """Uploads what a line names, and returns it with paths relative to the run's folder."""
        if line["type"] == "checkpoint":
            return self._checkpoint(line)
        if line["type"] != "result":
            return line
        out = self._folder / "out"
        files = [path.relative_to(self._folder) for path in sorted(out.rglob("*")) if path.is_file()]
        for file in files:
            self._upload(self._folder / file, file)
        relative = json.loads(json.dumps(line).replace(json.dumps(f"{self._folder}/")[1:-1], ""))
        return _naming(relative, files)

    def _checkpoint(self, line: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._checkpoints -= 1
            newer = self._checkpoints > 0
        name = Path(line["data"]["path"]).name
        kept = self._folder / "outbox" / name
        try:
            if newer or not (kept / "manifest.json").exists():
                # Its losses are reported nowhere else.
                return {"type": "metrics", "message": line["message"], "data": {"losses": line["data"]["losses"]}}
            files = [Path("checkpoints") / name / file.name for file in sorted(kept.iterdir())]
            for file in files:
                self._upload(kept / file.name, file)
        finally:
            shutil.rmtree(kept, ignore_errors=True)
        return _naming({**line, "data": {**line["data"], "path": f"checkpoints/{name}"}}, files)

    def _upload(self, file: Path, path: Path) -> None:
        self._service.upload(f"files/{path.as_posix()}", file)


def _naming(line: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    """With the files that the service now has: another of its machines may have to fetch them."""
    return {**line, "data": {**line["data"], "files": [file.as_posix() for file in files]}}


def _split_before_files(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Lines whose files take long to upload begin a new group, so that those before do not wait."""
    groups: list[list[dict[str, Any]]] = []
    for line in lines:
        if not groups or line["type"] in ("checkpoint", "result"):
            groups.append([])
        groups[-1].append(line)
    return groups
