"""A process knows its memory on every system: /proc and control groups are Linux's alone."""

import mmap
import sys

import psutil
import pytest

from trainer.runtime import process_memory

SIZE, NOISE = 200_000_000, 20_000_000
TOTAL = psutil.virtual_memory().total


@pytest.fixture(params=["linux", "elsewhere"])
def system(request, monkeypatch, tmp_path):
    if request.param == "elsewhere":
        monkeypatch.setattr(process_memory, "STATUS", tmp_path / "status")
        monkeypatch.setattr(process_memory, "CONTROL_GROUP", tmp_path)


@pytest.mark.usefixtures("system")
def test_memory_that_is_used_is_resident_and_counts_for_the_peak():
    before = process_memory.resident_bytes()
    with mmap.mmap(-1, SIZE) as block:
        block.write(bytes(SIZE))
        held = process_memory.resident_bytes()
        assert held - before == pytest.approx(SIZE, abs=NOISE)
        assert held - NOISE < process_memory.peak_bytes() < TOTAL
    assert process_memory.resident_bytes() == pytest.approx(before, abs=NOISE)
    assert process_memory.peak_bytes() > held - NOISE


def test_macos_counts_the_peak_in_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(process_memory, "STATUS", tmp_path / "status")
    kilobytes = process_memory.peak_bytes() / 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert process_memory.peak_bytes() == pytest.approx(kilobytes, rel=0.1)


@pytest.mark.usefixtures("system")
def test_what_is_available_is_less_than_the_machine_has():
    assert 0 < process_memory.available_bytes() < TOTAL


@pytest.mark.parametrize(("limit", "available"), [("1000000000\n", 600_000_000), ("max\n", None)])
def test_the_limit_of_the_control_group_counts(monkeypatch, tmp_path, limit, available):
    monkeypatch.setattr(process_memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("400000000\n")
    expected = available or psutil.virtual_memory().available
    assert process_memory.available_bytes() == pytest.approx(expected, rel=0.1)
