"""An archive has the folder's exact content, is reproducible, and is written atomically."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from trainer.export import pack
from trainer.export.card import CHECK_HEADING
from trainer.tests.conftest import ROOT
from trainer.tests.exporting import silent, write_spec

CARD = f"---\nlicense: mit\n---\n\n# Tickets\n\n{CHECK_HEADING}\n\nNot yet.\n"
CHECK = {
    "runtime": "transformers 5",
    "prompts": 4,
    "identical": 0.75,
    "matching_tokens": 0.91,
    "log_probability_difference": 0.0123,
}


@pytest.fixture
def export(tmp_path):
    """An exported folder with an empty file and one longer than a chunk, and its spec."""
    model = tmp_path / "model"
    model.mkdir()

    def make(archive, name="export"):
        folder = tmp_path / name
        spec = write_spec(folder, tmp_path, model, archive=archive)
        made = folder / "out" / spec.folder_name
        (made / "onnx").mkdir(parents=True)
        (made / "README.md").write_text(CARD)
        (made / "onnx/model.onnx").write_bytes(bytes(range(256)) * 10_000)
        (made / "empty").write_bytes(b"")
        # Differences between machines and runs.
        (made / "empty").chmod(0o600)
        os.utime(made / "README.md", (1, len(name)))
        return spec, folder

    return make


def contents(path):
    if path.suffix == ".tar":
        with tarfile.open(path) as archive:
            assert all((entry.mode, entry.uid, entry.gid, entry.uname) == (0o644, 0, 0, "") for entry in archive)
            return {entry.name: archive.extractfile(entry).read() for entry in archive}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(entry.external_attr >> 16 == 0o100644 for entry in archive.infolist())
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("tickets · SmolLM2-135M-Instruct", "tickets-SmolLM2-135M-Instruct"),
        ('../../Ärger: "v1.2" <a b>/é', "Arger-v1.2-a-b-e"),
        ("x" * 79 + " y", "x" * 79),
        ("--outfile", "outfile"),
        ("Ｆｕｌｌ①", "Full1"),
        ("票据", "ft_1"),
        ("...", "ft_1"),
        ("con", "ft_1"),
        ("Nul.v1", "ft_1"),
        ("console", "console"),
    ],
)
def test_files_are_named_after_the_model_with_portable_characters(tmp_path, name, file_name):
    spec = write_spec(tmp_path / "export", tmp_path, tmp_path, quantization="bf16", model={"name": name})
    assert spec.name == file_name
    assert spec.folder_name == f"{file_name}-bf16"


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_unpacks_to_the_same_files(export, kind):
    spec, folder = export(kind)
    (folder / "check.json").write_text(json.dumps(CHECK))
    seen = []
    result = pack.pack(spec, folder, lambda stage, done: seen.append((stage, done)))
    path = folder / f"Tickets.{kind}"
    (file,) = result["files"]
    assert result["out"] == str(path)
    assert file == {
        "name": path.name,
        "size_bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    found = contents(path)
    assert found.keys() == {"Tickets/README.md", "Tickets/empty", "Tickets/onnx/model.onnx"}
    assert found["Tickets/onnx/model.onnx"] == bytes(range(256)) * 10_000
    card = found["Tickets/README.md"].decode()
    assert card.startswith("---\nlicense: mit\n---\n")
    assert "Not yet" not in card
    assert "| Tokens that are the same before answers part | 91% |" in card
    assert "0.0123" in card
    assert [done for _, done in seen] == sorted(done for _, done in seen)
    assert seen[-1] == ("pack", 1.0)
    assert {path.name for path in folder.iterdir()} == {"spec.json", "out", "check.json", path.name}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_same_files_make_the_same_archive(export, kind):
    digests = {pack.pack(*export(kind, name), silent)["files"][0]["sha256"] for name in ("one", "another")}
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_archive_is_the_same_on_every_machine(export, kind, monkeypatch):
    digests = set()
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        digests.add(pack.pack(*export(kind, zone.replace("/", "-")), silent)["files"][0]["sha256"])
    monkeypatch.undo()
    time.tzset()
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_failure_in_the_middle_leaves_no_archive(export, kind, monkeypatch):
    spec, folder = export(kind)

    def fail(_stage, done):
        if done > 0.3:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        pack.pack(spec, folder, fail)
    assert {path.name for path in folder.iterdir()} == {"spec.json", "out"}


def test_a_file_over_the_zip_limit_uses_zip64(export, monkeypatch):
    # As if zip's limit of four gigabytes were one megabyte.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1 << 20)
    spec, folder = export("zip")
    path = folder / pack.pack(spec, folder, silent)["files"][0]["name"]
    with zipfile.ZipFile(path) as archive:
        versions = {entry.filename: entry.extract_version for entry in archive.infolist()}
    assert versions["Tickets/onnx/model.onnx"] == zipfile.ZIP64_VERSION
    assert versions["Tickets/README.md"] < zipfile.ZIP64_VERSION
    assert contents(path)["Tickets/onnx/model.onnx"] == bytes(range(256)) * 10_000


def test_a_single_file_is_hashed_as_it_is(export, tmp_path):
    spec, folder = export(None)
    result = pack.pack(spec, folder, silent)
    assert {file["name"] for file in result["files"]} == {
        "Tickets/README.md",
        "Tickets/empty",
        "Tickets/onnx/model.onnx",
    }
    for file in result["files"]:
        assert file["sha256"] == hashlib.sha256((folder / "out" / file["name"]).read_bytes()).hexdigest()


def test_the_process_reports_progress_and_result(export):
    _, folder = export("tar")
    done = subprocess.run(
        [sys.executable, "-m", "trainer.export.pack", str(folder)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert {line["type"] for line in lines} == {"progress", "result"}
    assert lines[-1]["data"]["files"][0]["name"] == "Tickets.tar"
    assert lines[-1]["data"]["peak_memory_mb"] < 200
