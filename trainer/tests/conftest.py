"""Fixtures: a tiny base, a small dataset, and runs of the trainer on them, as a process or in this one."""

import os

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", GOMP_SPINCOUNT="2000")

import copy
import functools
import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.runtime.process import importing
from trainer.runtime.protocol import StopRequested
from trainer.runtime.spec import Spec, read_spec
from trainer.tests.make_tiny import SMALL_VOCABULARY, TOKENIZER, make_tiny, write_tokenizer

# `TRAINER_TEST_DEVICE=cuda pytest trainer/tests` runs the CPU's tests on a GPU, in float32 too.
DEVICE = os.environ.get("TRAINER_TEST_DEVICE", "cpu")
ROOT = Path(__file__).parents[2]
CONVERTERS = ROOT / ".local/llama/source"


class Recorder:
    """A protocol that records its events in a list."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict]] = []
        self.stop_requested = False
        # Raises StopRequested at the end of this interruptible section, counted from 1.
        self.stop_at_section: int | None = None
        self._sections = 0

    def emit(self, type: str, message: str, **data: object) -> None:
        json.dumps(data, allow_nan=False)
        self.events.append((type, message, data))

    def metrics_due(self, last: bool) -> bool:
        return True

    def steps_begin(self) -> None:
        pass

    def steps_end(self) -> None:
        pass

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        yield
        self._sections += 1
        if self._sections == self.stop_at_section:
            raise StopRequested

    def of(self, type: str) -> list[dict]:
        return [data for kind, _, data in self.events if kind == type]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A base of 2,048 tokens, whose tokenizer loads in a tenth of the time of a real one."""
    with importing():
        return make_tiny(tmp_path_factory.mktemp("tiny"), vocab_size=SMALL_VOCABULARY)


@pytest.fixture(scope="session")
def convertible(tmp_path_factory) -> Path:
    """A base that llama.cpp's converter knows, by its whole vocabulary."""
    return make_tiny(tmp_path_factory.mktemp("convertible"))


@pytest.fixture(scope="session")
def known_tokens():
    """Lets llama.cpp's converter take SMALL_VOCABULARY, too, for the default base's: it knows a vocabulary by the
    tokens of a text.
    """
    from trainer.runtime.converters import packages

    with packages(CONVERTERS):
        from conversion.base import TextModel
    named = TextModel.get_vocab_base_pre
    TextModel.get_vocab_base_pre = lambda model, tokenizer: (
        "smollm" if len(tokenizer) < 2 * SMALL_VOCABULARY else named(model, tokenizer)
    )
    yield
    TextModel.get_vocab_base_pre = named


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, known_tokens):
    """A base of a family, or the tiny one, converted for the engine, once: tests only read it."""
    from tests.families.checkpoints import write
    from trainer.cli.prepare_base import convert_to_gguf

    folders = tmp_path_factory.mktemp("prepared")

    @functools.cache
    def prepare(name: str) -> Path:
        folder = folders / name
        if name == "tiny":
            make_tiny(folder / "hf", vocab_size=SMALL_VOCABULARY)
        else:
            write(name, folder / "hf", as_served=name in ("glm4_moe_lite", "mistral3"), tokens=SMALL_VOCABULARY)
        convert_to_gguf(folder, CONVERTERS)
        return folder

    return prepare


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory) -> Path:
    """The folder of the default tokenizer with 2,048 tokens, which loads in a tenth of the time."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), SMALL_VOCABULARY)


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


def with_chat_template(tokenizer, template: str):
    """A copy of the tokenizer with another chat template and the same vocabulary: who adds tokens passes a deep one."""
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


def pair_row(prompt: str | list[dict], chosen: str, rejected: str) -> dict:
    """A canonical row with two answers to a prompt."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    answers = ({"role": "assistant", "content": answer} for answer in (chosen, rejected))
    return {"prompt": asked, **dict(zip(("chosen", "rejected"), answers, strict=True))}


def rated_row(prompt: str | list[dict], answer: str, label: bool) -> dict:
    """A canonical row with a rated answer."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {"messages": [*asked, {"role": "assistant", "content": answer}], "label": label}


def conversations() -> list[list[dict]]:
    """Rows of several lengths and numbers of turns."""
    made = []
    for i in range(24):
        made.append(
            [
                {"role": "user", "content": f"Item {i}: " + "more words " * (i % 5)},
                {"role": "assistant", "content": f"{i * 7}"},
            ]
        )
    for message in ({"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Again, 12."}):
        made[3].append(message)
    made[5].insert(0, {"role": "system", "content": "Be short."})
    return made


@pytest.fixture
def job(tiny, tmp_path):
    """Writes a run folder; keyword arguments change parts of its spec: `training={"epochs": 1}`."""

    def make(name: str = "run", rows: list[list[dict]] | None = None, text: str | None = None, **changes) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        data = tmp_path / f"{name}.jsonl"
        data.write_text(
            text
            if text is not None
            else "".join(json.dumps({"messages": row}) + "\n" for row in rows or conversations())
        )
        spec = {
            "job_id": "job_1",
            "attempt": 1,
            "base": {"id": "test/tiny", "path": str(tiny)},
            "dataset": {"path": str(data), "sha256": hashlib.sha256(data.read_bytes()).hexdigest()},
            "method": "lora",
            "lora": {"r": 4, "alpha": 8, "dropout": 0, "target_modules": "all-linear"},
            "training": {
                "epochs": 4,
                "batch_size": 4,
                "learning_rate": 0.003,
                "warmup_ratio": 0.05,
                "scheduler": "cosine",
                "seed": 42,
                "max_length": 2048,
                "weight_decay": 0.0,
                "max_grad_norm": 1.0,
            },
            "threads": 1,
            "checkpoint": {"every_seconds": None, "every_steps": 4, "keep": 2},
            "resume_from": [],
            "converters": str(CONVERTERS),
        }
        for key, value in changes.items():
            spec[key] = {**spec[key], **value} if isinstance(spec.get(key), dict) and value else value
        (folder / "spec.json").write_text(json.dumps(spec))
        return folder

    return make


@pytest.fixture
def loop_of():
    """A training loop on a run folder, in this process."""

    def make(folder: Path, protocol: Recorder | None = None, precision: str = "float32", on: str = DEVICE):
        import torch

        from trainer.data.dataset import prepare_splits
        from trainer.data.rows import read_rows
        from trainer.model import gpu
        from trainer.model.load import load_model, load_tokenizer
        from trainer.run.loop import Loop

        spec: Spec = read_spec(folder)
        protocol = protocol or Recorder()
        torch.set_num_threads(1)
        rows = read_rows(Path(spec.dataset.path), spec.dataset.sha256, spec.options.objective)
        tokenizer = load_tokenizer(spec)
        data, held_out = prepare_splits(spec, rows, tokenizer, spec.training.max_length, protocol)
        device = torch.device(on, 0) if on == "cuda" else torch.device(on)
        gpu.select_device(device)
        model = load_model(spec, device, getattr(torch, precision))
        return Loop(spec, model, tokenizer, data, held_out, folder, device, protocol)

    return make


def pytest_configure() -> None:
    """Collects no garbage until `pytest_collection_finish`."""
    gc.disable()


def pytest_collection_finish() -> None:
    """The garbage collector need not look through what the tests' files have imported, nor do so meanwhile."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what takes long unless `npm run test:full` runs."""
    if os.environ.get("TEST_FULL"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="npm run test:full"))
