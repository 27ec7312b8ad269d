"""A postponed module is the module itself from its first use on."""

import importlib
import sys

import pytest

from trainer.runtime import postponed


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is postponed, and fails to load while `broken` lies in its folder."""
    folder = tmp_path / "postponed_toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n"
        "if (Path(__file__).parent / 'broken').exists(): raise OSError('broken')\n"
        "from .part import OBJECT, VALUE\n"
    )
    (folder / "part.py").write_text(
        "import postponed_toy\nEARLY = hasattr(postponed_toy, 'VALUE')\nVALUE, OBJECT = 3, object()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(postponed, "POSTPONED", {folder.name})
    monkeypatch.setattr(sys, "meta_path", [postponed._Postponing(), *sys.meta_path])
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_its_first_use_loads_it(package):
    module = importlib.import_module(package.name)
    assert not hasattr(module, "__wrapped__")
    assert f"{package.name}.part" not in sys.modules
    assert module.VALUE == 3
    assert not sys.modules[f"{package.name}.part"].EARLY
    assert type(module) is type(sys)
    with pytest.raises(AttributeError):
        _ = module.missing


def test_so_does_an_import_of_a_part(package):
    module = importlib.import_module(package.name)
    part = importlib.import_module(f"{package.name}.part")
    assert module.part is part
    # It was not loaded twice.
    assert vars(module)["OBJECT"] is part.OBJECT


def test_one_that_could_not_be_loaded_is_tried_again(package):
    module = importlib.import_module(package.name)
    (package / "broken").touch()
    with pytest.raises(OSError, match="broken"):
        _ = module.VALUE
    (package / "broken").unlink()
    assert module.VALUE == 3
