"""Brings what a run needs from the service into its folder: dataset, base, starting adapter and checkpoints."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from trainer.remote.service import Service

# Weights of bases stay on the machine for its next runs, the last used ones within this bound.
CACHE_BYTES = int(float(os.environ.get("TUNERY_RUN_CACHE_GB", "50")) * 1e9)


def prepare(service: Service, folder: Path, cache: Path, converters: Path) -> dict[str, Any]:
    """Writes `folder/spec.json` and the files that it names. Returns the spec.

    The service sends {spec, files: [{path, sha256, size_bytes, cache}]}: the spec's paths are relative to `folder`, and
    each of `files` has its own. A file with `cache` is kept on the machine under its hash.
    """
    described = service.get("spec")
    for file in described["files"]:
        fetch(service, file, folder / file["path"], cache)
    spec: dict[str, Any] = described["spec"]
    evaluation: dict[str, Any] = spec.get("evaluation") or {}
    for part in (spec["base"], spec["dataset"], spec.get("start"), evaluation.get("dataset")):
        if part:
            part["path"] = str(folder / part["path"])
    for checkpoint in spec["resume_from"]:
        checkpoint["path"] = str(folder / checkpoint["path"])
    spec["converters"] = str(converters)
    (folder / "spec.json").write_text(json.dumps(spec, indent=2))
    return spec


def fetch(service: Service, file: dict[str, Any], target: Path, cache: Path) -> None:
    """Brings one of `files` to `target`; what the machine has kept is not fetched again, and not hashed again."""
    sha256 = file["sha256"]
    if not file["cache"]:
        service.download(f"files/{sha256}", target, sha256)
        return
    cached = cache / sha256
    if not cached.exists() or cached.stat().st_size != file["size_bytes"]:
        service.download(f"files/{sha256}", cached, sha256)
        _trim(cache)
    os.utime(cached)
    target.parent.mkdir(parents=True, exist_ok=True)
    link(cached, target)


def link(source: Path, target: Path) -> None:
    """A second name of the same file, which survives the first; a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _trim(cache: Path) -> None:
    """Removes the files that were used longest ago. A run has its own links, so what it uses stays."""
    files = sorted(
        ((stat.st_mtime, stat.st_size, path) for path in cache.iterdir() if (stat := path.stat())), reverse=True
    )
    total = 0
    for _, size, path in files:
        total += size
        if total > CACHE_BYTES and path.suffix != ".part":
            path.unlink(missing_ok=True)
