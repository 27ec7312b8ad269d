"""Two loops of tinker-cookbook, unmodified, on local data: supervised and reinforcement."""

import json
from pathlib import Path

import datasets
import pytest
from tinker_cookbook.recipes import rl_loop, sl_loop


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def local_data(monkeypatch):
    """What `datasets.load_dataset` loads, by its name, instead of what Hugging Face has."""
    known: dict[str, datasets.DatasetDict] = {}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *_, **__: known[name])

    def add(name: str, rows: list[dict]) -> None:
        known[name] = datasets.DatasetDict(train=datasets.Dataset.from_list(rows))

    return add


def test_the_supervised_loop_learns(local_data, base, tokenizer, tmp_path):
    words = ["red", "green", "blue", "black", "white", "brown", "pink", "grey"]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Colour {word}?"},
                {"role": "assistant", "content": f"It is {word}."},
            ]
        }
        for word in words * 4
    ]
    local_data("HuggingFaceH4/no_robots", rows)
    log = tmp_path / "sl"
    sl_loop.main(
        sl_loop.Config(
            log_path=str(log),
            model_name=base,
            batch_size=4,
            learning_rate=2e-3,
            max_length=256,
            lora_rank=8,
            save_every=5,
        )
    )
    losses = [row["train_mean_nll"] for row in metrics_of(log)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2, losses
    # Its checkpoints are there to go on from.
    states = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert [state["name"] for state in states] == ["000005", "final"]
    assert states[-1]["sampler_path"].startswith("tinker://")


def test_the_reinforcement_loop_takes_its_steps(local_data, base, tokenizer, tmp_path, monkeypatch):
    rows = [{"question": f"What is {n} plus one?", "answer": f"#### {n + 1}"} for n in range(4)]
    local_data("openai/gsm8k", rows)
    # A reward that a small model meets at times: whether the answer is short.
    monkeypatch.setattr(rl_loop, "get_reward", lambda response, answer: 1.0 if len(response) % 2 == 0 else 0.0)
    log = tmp_path / "rl"
    rl_loop.main(
        rl_loop.Config(
            log_path=str(log),
            model_name=base,
            batch_size=2,
            group_size=4,
            learning_rate=1e-4,
            lora_rank=8,
            max_tokens=16,
            loss_fn="importance_sampling",
        )
    )
    rewards = [row["reward/total"] for row in metrics_of(log)]
    assert len(rewards) == 2 and all(0 <= reward <= 1 for reward in rewards)
    assert any("grad_norm" in row for row in metrics_of(log))
