"""HTTP client of the service that a training on another machine reports to. It has no packages besides Python's own."""

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60
LONGEST_DELAY_SECONDS = 15


class RunEnded(Exception):
    """The service no longer wants this run: its job was cancelled or paused, or another run has taken over."""


class ServiceGone(Exception):
    """The service has not answered for longer than this run waits for it."""


class Service:
    """The internal routes of one run at the address `url`, authenticated by `token`.

    Every request is tried again while the service is away or overloaded, for `patience_seconds`. Raises RunEnded as
    soon as the service says so, and ServiceGone when the patience is over.
    """

    def __init__(self, url: str, token: str, patience_seconds: float = 24 * 3600) -> None:
        self._url, self._token, self._patience = url.rstrip("/"), token, patience_seconds

    def get(self, path: str) -> Any:
        """The JSON answer to a GET."""
        return self._patiently(lambda: self._json("GET", path))

    def post(self, path: str, body: object) -> Any:
        """The JSON answer to a POST of a JSON body."""
        data = json.dumps(body, allow_nan=False).encode()
        return self._patiently(lambda: self._json("POST", path, data, {"content-type": "application/json"}))

    def download(self, path: str, target: Path, sha256: str) -> None:
        """Writes `target` whole and verified, or not at all. Raises RunEnded, or ServiceGone if it never arrives so."""
        part = target.with_name(f"{target.name}.{os.getpid()}.part")

        def fetch() -> None:
            digest = hashlib.sha256()
            with self._open("GET", path) as answer, part.open("wb") as file:
                while chunk := answer.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise OSError(f"{path} arrived with another hash")
            part.rename(target)

        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._patiently(fetch)
        finally:
            part.unlink(missing_ok=True)

    def upload(self, path: str, file: Path) -> None:
        """Stores a file with the service, which compares its hash."""
        with file.open("rb") as source:
            sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(file.stat().st_size),
            "x-content-sha256": sha256,
        }

        def send() -> None:
            with file.open("rb") as source:
                self._json("PUT", path, source, headers)

        self._patiently(send)

    def _json(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Any:
        with self._open(method, path, data, headers) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _open(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None):
        headers = {"authorization": f"Bearer {self._token}", "user-agent": "tunery-trainer", **(headers or {})}
        request = urllib.request.Request(f"{self._url}/{path}", data, headers, method=method)
        return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)

    def _patiently(self, attempt: Callable[[], Any]) -> Any:
        since, delay = time.monotonic(), 0.25
        while True:
            try:
                return attempt()
            except urllib.error.HTTPError as error:
                if error.code in (401, 410):
                    raise RunEnded(f"the service answered {error.code}") from error
                # 409, 422: what was sent does not fit what the service has, and the same would not fit again.
                if error.code < 500 and error.code not in (408, 429):
                    raise
                problem: Exception = error
            # An answer that is cut off, or that a proxy gives in the service's place.
            except (OSError, HTTPException, json.JSONDecodeError) as error:
                problem = error
            if time.monotonic() - since > self._patience:
                raise ServiceGone(f"the service does not answer: {problem}") from problem
            time.sleep(delay)
            delay = min(LONGEST_DELAY_SECONDS, 2 * delay)
