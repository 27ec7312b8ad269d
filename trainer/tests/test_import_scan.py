"""The kept scan of transformers' files equals a new one, and is made again for another release."""

import inspect
import os
from types import ModuleType

import pytest
from transformers.utils import import_utils

from trainer.runtime.import_scan import _replace_scan

# transformers keeps results within a process.
SCAN = inspect.unwrap(import_utils.create_import_structure_from_path)


@pytest.fixture
def package(tmp_path):
    model = tmp_path / "models" / "toy"
    model.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "models", model):
        (folder / "__init__.py").touch()
    (tmp_path / "__pycache__").mkdir()
    (model / "modeling_toy.py").write_text('__all__ = ["ToyModel"]\n')
    return tmp_path


def scanning(package):
    """The module as a new process has it: its scan of `package`, and how often that read files."""
    module, reads = ModuleType("import_utils"), []
    module.__file__ = str(package / "utils" / "import_utils.py")

    def counted(path):
        reads.append(path)
        return SCAN(path)

    module.create_import_structure_from_path = counted
    _replace_scan(module)
    return module.create_import_structure_from_path, reads


def test_a_kept_scan_equals_a_new_one(package):
    expected = SCAN(package / "models")
    first, first_reads = scanning(package)
    assert first(package / "models") == first(str(package / "models" / "__init__.py")) == expected
    assert len(first_reads) == 1
    later, later_reads = scanning(package)
    found = later(package / "models")
    assert found == expected
    assert not later_reads
    # transformers changes what it gets.
    found.clear()
    assert later(package / "models") == expected


def test_another_release_or_a_damaged_file_is_scanned_again(package):
    scanning(package)[0](package / "models")
    other = package / "models" / "other"
    other.mkdir()
    (other / "modeling_other.py").write_text('__all__ = ["OtherModel"]\n')
    os.utime(package / "__init__.py", ns=(1, 1))
    scan, reads = scanning(package)
    assert "OtherModel" in str(scan(package / "models"))
    assert len(reads) == 1
    [kept] = (package / "__pycache__").glob("import_structure.*")
    for damaged in (b"", b"\xff" * 10, kept.read_bytes()[:20]):
        kept.write_bytes(damaged)
        scan, reads = scanning(package)
        assert "OtherModel" in str(scan(package / "models"))
        assert len(reads) == 1


def test_a_folder_that_cannot_be_written_is_scanned_each_time(package):
    (package / "__pycache__").rmdir()
    for _ in range(2):
        scan, reads = scanning(package)
        assert "ToyModel" in str(scan(package / "models"))
        assert len(reads) == 1
