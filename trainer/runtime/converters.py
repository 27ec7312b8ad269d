"""Runs llama.cpp's converters inside this process: importing torch again would take longer than the conversion."""

import contextlib
import runpy
import sys
from collections.abc import Generator
from pathlib import Path


def run_converter(converters: Path, script: str, arguments: list[str]) -> None:
    """Runs one of llama.cpp's conversion scripts. Its prints go to stderr, since stdout belongs to the caller's
    protocol.

    Raises RuntimeError if the script fails.
    """
    path = converters / script
    if not path.exists():
        raise RuntimeError(f"The converter {path} is missing: run the set-up again.")
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with packages(converters):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(f"{script} failed: {end.code}") from end
    finally:
        sys.argv = before


@contextlib.contextmanager
def packages(converters: Path) -> Generator[None]:
    """llama.cpp's packages can be imported, with the gguf package of its own release and not an installed one. Their
    prints go to stderr.
    """
    before = list(sys.path)
    sys.path[:0] = [str(converters / "gguf-py"), str(converters)]
    for name in [name for name in sys.modules if name == "gguf" or name.startswith("gguf.")]:
        del sys.modules[name]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = before
