"""Policy training by commands: the losses, groups that share a prompt, adapters in turn, and exact states."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.model.load import load_config
from trainer.policy.commands import Commands
from trainer.policy.data import read_data, sizes_of
from trainer.policy.losses import LOSSES, truncated_weights
from trainer.run import memory
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_command_spec
from trainer.tests.conftest import CONVERTERS, ROOT
from trainer.tests.test_packing import shake

LORA = {"r": 4, "alpha": 8, "dropout": 0, "target_modules": "all-linear"}
PROMPT = [1, 50, 60, 70, 80, 90]
ANSWERS = [[11, 12, 2], [13, 14, 15, 16, 2], [17, 2], [18, 19, 20, 2]]


@pytest.fixture
def folder(tiny, tmp_path):
    """A run folder of the command program."""
    spec = {
        "job_id": "job_1",
        "base": {"id": "test/tiny", "path": str(tiny)},
        "method": "lora",
        "lora": LORA,
        "start": None,
        "threads": 1,
        "converters": str(CONVERTERS),
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    return tmp_path


@pytest.fixture
def commands(folder, monkeypatch):
    """Commands in this process, in float32, with an adapter `a` that changes what the base says."""
    monkeypatch.setattr("trainer.policy.workspace.device_and_dtype", lambda: (torch.device("cpu"), torch.float32))
    torch.set_num_threads(1)
    made = Commands(read_command_spec(folder))
    made.run("create", {"adapter": "a"})
    shake(made.workspace.loaded())
    return made


def data(**more) -> list[dict]:
    """Two groups of two answers; each has an advantage."""
    advantages = [1.0, -0.7, 0.4, -1.2]
    return [
        {
            "ids": [*PROMPT[: 6 - place // 2], *answer],
            "start": 6 - place // 2,
            "advantages": advantage,
            "group": place // 2,
            **{name: value[place] for name, value in more.items()},
        }
        for place, (answer, advantage) in enumerate(zip(ANSWERS, advantages, strict=True))
    ]


def gradients(commands) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in commands.workspace.parameters.items()}
    for parameter in commands.workspace.parameters.values():
        parameter.grad = None
    return found


def reference(commands, datum: dict) -> torch.Tensor:
    """Log-probabilities of one answer, computed alone by transformers' own pass."""
    ids = torch.tensor([datum["ids"]])
    model = commands.workspace.loaded()
    from trainer.data.layout import layout_of

    logits = model(
        input_ids=ids,
        position_ids=torch.arange(ids.shape[1])[None],
        layout=layout_of([0], [ids.shape[1]], torch.device("cpu")),
        use_cache=False,
    ).logits[0, :-1]
    chosen = logits.float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return chosen[datum["start"] - 1 :]


def expected_loss(name: str, new, old, advantage: float, low: float, high: float):
    """The losses as the papers write them, for one answer: the sum over its tokens."""
    ratio = (new - old).exp()
    if name == "cross_entropy":
        return -new.sum()
    if name == "importance_sampling":
        return -(ratio * advantage).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage).sum()
    if name == "cispo":
        return -(ratio.detach().clamp(1 - low, 1 + high) * advantage * new).sum()
    if name == "gspo":
        whole = (new - old).mean().exp()
        return -torch.minimum(whole * advantage, whole.clamp(1 - low, 1 + high) * advantage) * len(new)
    return -(advantage * new).sum()


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_and_its_gradient_are_those_of_its_paper(commands, name):
    before = commands.run("forward", {"adapter": "a", "data": data()})["log_probabilities"]
    # Old probabilities on both sides of the bounds.
    rng = np.random.default_rng(0)
    old = [(np.array(row) + rng.normal(0, 0.3, len(row))).tolist() for row in before]
    weights = [0.5, 0.25, 1.0, 2.0]
    given = data(old=old, weights=weights)
    answer = commands.run("forward_backward", {"adapter": "a", "data": given, "loss": name, "low": 0.1, "high": 0.2})
    found = gradients(commands)
    loss = sum(
        weight
        * expected_loss(name, reference(commands, datum), torch.tensor(datum["old"]), datum["advantages"], 0.1, 0.2)
        for datum, weight in zip(given, weights, strict=True)
    )
    loss.backward()
    assert answer["loss"] == pytest.approx(float(loss.detach()), abs=1e-4)
    for key, value in gradients(commands).items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-3)
    assert (answer["clipped_share"] > 0) == (name in ("ppo", "cispo", "gspo"))
    for row, again in zip(before, answer["log_probabilities"], strict=True):
        assert again == pytest.approx(row, abs=1e-4)


def test_a_loss_moves_as_its_gradient_says(commands):
    """Finite differences in one direction, of the loss that most jobs have."""
    old = commands.run("forward", {"adapter": "a", "data": data()})["log_probabilities"]
    given = data(old=[[value - 0.05 for value in row] for row in old])
    command = {"adapter": "a", "data": given, "loss": "ppo", "low": 0.2, "high": 0.28}
    commands.run("forward_backward", command)
    slopes = gradients(commands)
    torch.manual_seed(1)
    direction = {name: torch.randn_like(slope) for name, slope in slopes.items()}
    expected = sum(float((slopes[name] * direction[name]).sum()) for name in slopes)

    def loss_at(distance: float) -> float:
        with torch.no_grad():
            for name, parameter in commands.workspace.parameters.items():
                parameter += distance * direction[name]
        value = commands.run("forward_backward", command)["loss"]
        gradients(commands)
        return value

    up, down = loss_at(1e-3), loss_at(-2e-3)
    assert (up - down) / 2e-3 == pytest.approx(expected, rel=0.02, abs=1e-3)


def test_a_group_in_one_pass_is_that_of_its_answers_alone(commands):
    together = commands.run("forward_backward", {"adapter": "a", "data": data()})
    whole = gradients(commands)
    alone = [commands.run("forward_backward", {"adapter": "a", "data": [datum]})["loss"] for datum in data()]
    assert together["loss"] == pytest.approx(sum(alone), abs=1e-4)
    for key, value in gradients(commands).items():
        torch.testing.assert_close(whole[key], value, atol=1e-5, rtol=1e-3)


def test_the_base_is_asked_without_the_adapter_which_stays_as_it_is(commands):
    forward = {"adapter": "a", "data": data()}
    tuned = commands.run("forward", forward)["log_probabilities"]
    base = commands.run("forward", {**forward, "base": True})["log_probabilities"]
    assert commands.run("forward", forward)["log_probabilities"] == tuned
    commands.run("create", {"adapter": "fresh"})
    fresh = commands.run("forward", {**forward, "adapter": "fresh"})["log_probabilities"]
    for expected, found, other in zip(fresh, base, tuned, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
        assert found != pytest.approx(other, abs=1e-3)


def test_context_between_trained_tokens_is_not_learned(commands):
    """An answer of two turns: the gradient is that of its own tokens, and the tokens between are read."""
    between = {"ids": [*PROMPT, 11, 12, 40, 41, 13, 2], "trained": [6, 7, 10, 11], "advantages": [1.0] * 4}
    whole = {**between, "trained": [6, 7, 8, 9, 10, 11], "advantages": [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]}
    command = {"adapter": "a", "loss": "reinforce"}
    answer = commands.run("forward_backward", {**command, "data": [between]})
    found = gradients(commands)
    expected = commands.run("forward_backward", {**command, "data": [whole]})
    for key, value in gradients(commands).items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-3)
    own = [expected["log_probabilities"][0][place] for place in (0, 1, 4, 5)]
    assert answer["log_probabilities"][0] == pytest.approx(own, abs=1e-4)


def test_probabilities_of_another_program_are_corrected_up_to_a_bound(commands):
    old = torch.tensor([-1.0, -1.0, -1.0])
    sampled = torch.tensor([-1.0, -0.5, -3.0])
    assert truncated_weights(old, sampled, 2.0).tolist() == pytest.approx([1.0, float(np.exp(-0.5)), 2.0])
    before = commands.run("forward", {"adapter": "a", "data": data()})["log_probabilities"]
    given = data(sampled=[[value - 9.0 for value in row] for row in before])
    plain = commands.run("forward_backward", {"adapter": "a", "data": data()})
    corrected = commands.run("forward_backward", {"adapter": "a", "data": given, "truncation": 2.0})
    assert corrected["loss"] == pytest.approx(2 * plain["loss"], abs=1e-4)
    assert corrected["correction"] == pytest.approx(2.0)
    gradients(commands)


def step(commands, name: str) -> list[list[float]]:
    commands.run("forward_backward", {"adapter": name, "data": data(), "loss": "reinforce"})
    commands.run("optim_step", {"adapter": name, "learning_rate": 0.01, "max_grad_norm": 1.0})
    return commands.run("forward", {"adapter": name, "data": data()})["log_probabilities"]


def test_adapters_in_turn_do_what_each_would_do_alone(commands):
    alone = [step(commands, "a") for _ in range(3)]
    commands.run("create", {"adapter": "b", "seed": 7})
    commands.run("create", {"adapter": "wide", "lora": {**LORA, "r": 8}, "seed": 7})
    other = [step(commands, "b"), step(commands, "wide"), step(commands, "b")]
    fresh = Commands(commands.spec)
    fresh.run("create", {"adapter": "a"})
    shake(fresh.workspace.loaded())
    fresh.run("create", {"adapter": "b", "seed": 7})
    fresh.run("create", {"adapter": "wide", "lora": {**LORA, "r": 8}, "seed": 7})
    mixed, mixed_other = [], []
    for place in range(3):
        mixed.append(step(fresh, "a"))
        mixed_other.append(step(fresh, "wide" if place == 1 else "b"))
    assert mixed == alone and mixed_other == other
    assert other[0] != alone[0]
    # Gradients wait for their own step.
    fresh.run("forward_backward", {"adapter": "a", "data": data()})
    fresh.run("forward", {"adapter": "b", "data": data()})
    assert fresh.run("optim_step", {"adapter": "a", "learning_rate": 0.01})["grad_norm"] > 0


def test_a_state_goes_on_exactly_and_a_damaged_one_is_not_used(commands, tmp_path):
    step(commands, "a")
    path = str(tmp_path / "states" / "step-1")
    saved = commands.run("save_state", {"adapter": "a", "path": path, "fields": {"cursor": 3}})
    went_on = [step(commands, "a"), step(commands, "a")]
    fresh = Commands(commands.spec)
    load = {"adapter": "x", "path": path, "sha256": saved["sha256"]}
    assert fresh.run("load_state", load) == {"fields": {"cursor": 3}}
    assert [step(fresh, "x"), step(fresh, "x")] == went_on
    weights = tmp_path / "states" / "step-1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert fresh.run("load_state", load) == {"fields": None}
    assert fresh.run("load_state", {**load, "path": str(tmp_path / "none")}) == {"fields": None}


def test_the_engines_file_follows_each_step_and_adapter(commands, tiny, tmp_path):
    commands.run("create", {"adapter": "b", "lora": {**LORA, "r": 8}})
    hashes = set()
    for place, name in enumerate(["a", "a", "b", "a"]):
        commands.run("forward_backward", {"adapter": name, "data": data()})
        commands.run("optim_step", {"adapter": name, "learning_rate": 1e-2})
        out = tmp_path / str(place)
        saved = commands.run("save_weights", {"adapter": name, "path": str(out)})
        write_adapter_gguf(CONVERTERS, tiny, out / "adapter", tmp_path / "whole.gguf", "f16")
        written = (out / "adapter.gguf").read_bytes()
        assert written == (tmp_path / "whole.gguf").read_bytes()
        assert saved == {"gguf": str(out / "adapter.gguf"), "sha256": hashlib.sha256(written).hexdigest()}
        hashes.add(saved["sha256"])
    assert len(hashes) == 4


def test_other_tokens_may_be_asked_for_in_the_places_of_the_texts_own(commands):
    plain = data()[0]
    labels = [30, 12, 31]
    model = commands.workspace.loaded()
    from trainer.data.layout import layout_of

    ids = torch.tensor([plain["ids"]])
    logits = model(
        input_ids=ids,
        position_ids=torch.arange(ids.shape[1])[None],
        layout=layout_of([0], [ids.shape[1]], torch.device("cpu")),
        use_cache=False,
    ).logits[0, plain["start"] - 1 : -1]
    expected = logits.float().log_softmax(-1).gather(1, torch.tensor(labels)[:, None])[:, 0]
    expected.sum().neg().backward()
    slopes = gradients(commands)
    asked = {"adapter": "a", "data": [{**plain, "labels": labels}, data()[1]], "loss": "cross_entropy"}
    rows = commands.run("forward", asked)["log_probabilities"]
    assert rows[0] == pytest.approx(expected.tolist(), abs=1e-4)
    assert rows[1] == pytest.approx(reference(commands, data()[1]).tolist(), abs=1e-4)
    commands.run("forward_backward", {**asked, "data": asked["data"][:1]})
    for key, value in gradients(commands).items():
        torch.testing.assert_close(slopes[key], value, atol=1e-5, rtol=1e-3)


def test_a_state_may_be_loaded_without_its_moments(commands, tmp_path):
    step(commands, "a")
    saved = commands.run("save_state", {"adapter": "a", "path": str(tmp_path / "state")})
    load = {"path": str(tmp_path / "state"), "sha256": saved["sha256"]}
    commands.run("load_state", {"adapter": "whole", **load})
    commands.run("load_state", {"adapter": "weights", **load, "optimizer": False})
    before = [commands.run("forward", {"adapter": name, "data": data()}) for name in ("whole", "weights")]
    assert before[0] == before[1]
    assert step(commands, "whole") != step(commands, "weights")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [1]}, "'ids' must be 2 to"),
        ({"ids": [1, 2, 9_999_999]}, "tokens of the vocabulary"),
        ({"ids": [1, 2.5, 3]}, "whole numbers"),
        ({"start": 0}, "nothing precedes the first"),
        ({"start": 99}, "positions from 1"),
        ({"advantages": [1.0]}, "a finite number for each of the 3"),
        ({"old": [float("nan")] * 3}, "finite"),
        ({"labels": [1, 2]}, "'labels' must be 3 tokens"),
        ({"labels": [1, 2, -1]}, "'labels' must be 3 tokens"),
    ],
)
def test_bad_data_is_refused_with_what_is_wrong(change, message):
    with pytest.raises(JobError, match=message):
        read_data([{**data()[0], **change}], 2048, 2048)


def test_numbers_that_are_not_finite_fail_their_command_and_leave_no_gradients(commands):
    commands.run("forward_backward", {"adapter": "a", "data": data()})
    with pytest.raises(JobError, match="no finite number") as raised:
        commands.run("forward_backward", {"adapter": "a", "data": data(weights=[3e38] * 4), "loss": "cross_entropy"})
    assert raised.value.code == "non_finite_loss"
    assert all(parameter.grad is None for parameter in commands.workspace.parameters.values())
    commands.run("forward_backward", {"adapter": "a", "data": data()})
    commands.run("optim_step", {"adapter": "a", "learning_rate": 1e30})
    with pytest.raises(JobError, match="no finite number"):
        commands.run("forward", {"adapter": "a", "data": data()})


def test_the_program_answers_each_command_and_ends_with_its_server(folder):
    child = subprocess.Popen(
        [sys.executable, "-m", "trainer.cli.commands", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdin and child.stdout

    def ask(**request):
        child.stdin.write(json.dumps({"id": 5, **request}).encode() + b"\n")
        child.stdin.flush()
        line = json.loads(child.stdout.readline())
        assert line["type"] == "answer" and line["data"]["id"] == 5
        return line["data"]

    with child:
        assert ask(command="create", adapter="a")["fields"]["parameters"] > 0
        assert ask(command="forward", adapter="b", data=data())["error"]["message"] == "There is no adapter 'b'."
        assert ask(command="dance")["error"]["code"] == "internal"
        assert "lacks 'data'" in ask(command="forward", adapter="a")["error"]["message"]
        file = folder / "rollouts.json"
        file.write_text(json.dumps({"data": data()}))
        rows = ask(command="forward", adapter="a", data=str(file))["fields"]["log_probabilities"]
        assert [len(row) for row in rows] == [3, 5, 2, 4]
        child.stdin.close()
        assert child.wait(30) == 74


def test_a_base_that_cannot_fit_is_refused_before_it_is_loaded(folder, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    monkeypatch.setattr(memory, "held_bytes", lambda device: 400e6)
    refused = Commands(read_command_spec(folder))
    with pytest.raises(JobError, match=r"GB of memory, and 0\.4 GB are free\. Shorten prompts and answers") as raised:
        refused.run("create", {"adapter": "a"})
    assert raised.value.code == "out_of_memory"
    assert refused.workspace.model is None
    assert refused.workspace.adapters == {}


def test_an_update_that_cannot_fit_is_refused_and_changes_nothing(commands, monkeypatch):
    long = [{"ids": [*PROMPT, *range(20, 20 + 600)], "start": 6, "advantages": 1.0}]
    grown = memory.predicted_bytes(
        memory.shape_of(load_config(commands.workspace.spec)), commands.workspace.spec, 4, 606, 600, torch.device("cpu")
    )
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    monkeypatch.setattr(memory, "held_bytes", lambda device: grown - 1)
    with pytest.raises(JobError, match="are free") as raised:
        commands.run("forward_backward", {"adapter": "a", "data": long})
    assert raised.value.code == "out_of_memory"
    assert all(parameter.grad is None for parameter in commands.workspace.parameters.values())
    # Smaller passes than those that fitted are not looked at again.
    commands.run("forward_backward", {"adapter": "a", "data": data()})
    monkeypatch.setattr(memory, "held_bytes", lambda device: grown + 1)
    commands.run("forward_backward", {"adapter": "a", "data": long})


def test_the_size_of_a_pass_counts_the_prompt_of_a_group_once():
    read = read_data(data(), 1000, 1000)
    assert sizes_of(read, [[0, 1], [2, 3]]) == ((9 + 11 - 5) + (7 + 9 - 4), 3 + 5 + 2 + 4)
