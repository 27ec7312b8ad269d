"""Keeps what transformers finds out about its own files at import.

transformers reads all files of all its models, twice in each process, to learn which names they define: a third of the
time that a trainer needs to start. The result depends on the installed release alone.
"""

import functools
import marshal
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.runtime.lean_imports import works_alone

MODULE = "transformers.utils.import_utils"


def cache_import_scan() -> None:
    """Lets the imports of transformers that follow use the result of an earlier process, or leave theirs."""
    if MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the module that scans, and replaces its function once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace_scan(module)
                if works_alone():
                    # A second for a class that no tensor of a single process has.
                    vars(module)["is_torch_distributed_available"] = lambda: False

            spec.loader.exec_module = execute_and_replace
        return spec


def _replace_scan(module: ModuleType) -> None:
    scan = module.create_import_structure_from_path
    package = Path(str(module.__file__)).parent.parent
    models = package / "models"

    @functools.wraps(scan)
    def cached(path: str | Path) -> dict[str, Any]:
        # Each model's own folder is scanned too, where it is imported. That is quick.
        if Path(path) not in (models, models / "__init__.py"):
            return scan(path)
        try:
            file = package / "__pycache__" / f"import_structure.{sys.implementation.cache_tag}.marshal"
            # Set-up installs a release by making these again.
            release = [(path / "__init__.py").stat().st_mtime_ns for path in (package, models)]
        except OSError:
            return scan(path)
        if (kept := _read(file)) and kept["release"] == release:
            return kept["structure"]
        structure = scan(path)
        _write(file, {"release": release, "structure": structure})
        return structure

    vars(module)["create_import_structure_from_path"] = cached


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return marshal.loads(file.read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        return None


def _write(file: Path, value: dict[str, Any]) -> None:
    """Writes it whole or not at all: other processes read it, and the folder may be read-only."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(marshal.dumps(value))
        temporary.replace(file)
    except (OSError, ValueError):
        temporary.unlink(missing_ok=True)
