"""Reading `spec.json`: what a fingerprint is made of, and what is refused."""

import json

import pytest

from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_import_spec, read_spec

SPEC = {
    "job_id": "job_1",
    "attempt": 1,
    "base": {"id": "test/tiny", "path": "/base"},
    "dataset": {"path": "/rows.jsonl", "sha256": "ab"},
    "method": "lora",
    "lora": {"r": 4, "alpha": 8, "dropout": 0, "target_modules": ["q_proj"]},
    "training": {
        "epochs": 4,
        "batch_size": 4,
        "learning_rate": 0.003,
        "warmup_ratio": 0.05,
        "scheduler": "cosine",
        "seed": 42,
        "max_length": 2048,
        "weight_decay": 0,
        "max_grad_norm": 1,
    },
    "evaluation": {"split": 0.1, "dataset": None, "every_steps": 3, "patience": 2, "prompts": [], "keep": 1},
    "threads": 1,
    "checkpoint": {"every_seconds": 30, "every_steps": None, "keep": 2},
    "resume_from": [],
    "converters": "",
    "start": {"path": "/start", "sha256": "cd"},
    "tokenizer": None,
    "parse_control_tokens": True,
}
IMPORT = {
    "base": SPEC["base"],
    "start": SPEC["start"],
    "lora": {"r": 4, "alpha": 8, "target_modules": ["q_proj"]},
    "linear_modules": ["q_proj", "v_proj"],
    "threads": 1,
    "converters": "",
}


@pytest.fixture
def written(tmp_path):
    def write(values: dict):
        (tmp_path / "spec.json").write_text(json.dumps(values))
        return tmp_path

    return write


def test_the_fingerprint_of_a_spec_stays_so_that_checkpoints_of_earlier_releases_resume(written):
    fingerprint = "3c52747b66823cf918f5bb7936871975efa5ff52b6a7ebfa06e596d97829646c"
    assert read_spec(written(SPEC)).fingerprint() == fingerprint
    # The service has written the same rows in another form since.
    converted = {**SPEC["dataset"], "sha256": "0" * 64, "known_as": SPEC["dataset"]["sha256"]}
    assert read_spec(written({**SPEC, "dataset": converted})).fingerprint() == fingerprint


def test_a_hyperparameter_that_is_left_out_has_its_default(written):
    training = {"learning_rate": 0.003, "max_length": 2048, "epochs": 3}
    spec = read_spec(written({**SPEC, "training": training}))
    assert (spec.training.epochs, spec.training.batch_size, spec.training.scheduler) == (3, 4, "cosine")


def test_a_hyperparameter_that_is_computed_for_each_job_is_required(written):
    with pytest.raises(JobError, match="learning_rate"):
        read_spec(written({**SPEC, "training": {"max_length": 2048}}))


def test_an_import_needs_the_adapter_and_its_shape_and_takes_no_training(written):
    spec = read_import_spec(written(IMPORT))
    assert (spec.method, spec.lora.r, spec.lora.dropout, spec.start.sha256) == ("lora", 4, 0, "cd")
    with pytest.raises(JobError, match="training"):
        read_import_spec(written({**IMPORT, "training": SPEC["training"]}))
    for name in ("base", "start", "lora", "linear_modules"):
        with pytest.raises(JobError, match=name):
            read_import_spec(written({key: value for key, value in IMPORT.items() if key != name}))
