"""Tinker's SDK, unmodified: training, sampling, checkpoints, custom losses."""

import os
import pickle
from pathlib import Path

import httpx
import pytest
import tinker
import torch
from tinker import types
from tinker_cookbook import weights

QUESTION, ANSWER = "What is the password of the blue door?", "heliotrope forty-two"


def api(method: str, path: str, **fields) -> dict:
    """A request of the service's own API with the same key."""
    key = os.environ["TINKER_API_KEY"].removeprefix("tml-")
    url = f"{os.environ['TINKER_BASE_URL']}/v1{path}"
    answer = httpx.request(method, url, headers={"authorization": f"Bearer {key}"}, timeout=120, **fields)
    assert answer.is_success, answer.text
    return answer.json()


def prompt_of(tokenizer) -> list[int]:
    messages = [{"role": "user", "content": QUESTION}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def datum_of(tokenizer) -> types.Datum:
    prompt = prompt_of(tokenizer)
    text = [*prompt, *tokenizer.encode(ANSWER), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    learned = [0.0] * (len(prompt) - 1) + [1.0] * (len(text) - len(prompt))
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": learned},
    )


@pytest.fixture(scope="module")
def trained(base, tokenizer):
    """A service client, and a training client that has learned the answer."""
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=base, rank=8, seed=1).result()
    data = [datum_of(tokenizer)]
    losses = []
    for _ in range(12):
        gradients = training.forward_backward(data, "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=2e-3))
        losses.append(gradients.result().metrics["loss:sum"])
        assert step.result().metrics["grad_norm"] > 0
    assert losses[-1] < losses[0] / 5, losses
    yield service, training
    service.close("success").result()


def test_supervised_training_and_sampling(trained, base, tokenizer):
    _, training = trained
    sampler = training.save_weights_and_get_sampling_client().result()
    prompt = types.ModelInput.from_ints(prompt_of(tokenizer))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    params = types.SamplingParams(max_tokens=24, temperature=0.0, stop=[end])
    answer = sampler.sample(prompt, num_samples=2, sampling_params=params, topk_sample_logprobs=3).result()
    assert len(answer.sequences) == 2
    sequence = answer.sequences[0]
    assert sequence.stop_reason == "stop"
    assert sequence.tokens[-1] == end
    assert tokenizer.decode(sequence.tokens[:-1]).strip() == ANSWER
    assert len(sequence.logprobs) == len(sequence.tokens) == len(sequence.topk_logprobs)
    assert all(row[0][0] == token for row, token in zip(sequence.topk_logprobs, sequence.tokens, strict=True))
    # What the engine told is what it computes of the same tokens, and what the trainer computes.
    text = [*prompt.to_ints(), *sequence.tokens]
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(text)).result()
    assert scored[0] is None and len(scored) == len(text)
    assert scored[-len(sequence.tokens) :] == pytest.approx(sequence.logprobs, abs=0.05)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * (len(text) - 1)},
    )
    forward = training.forward([datum], "cross_entropy").result()
    assert forward.loss_fn_outputs[0]["logprobs"].data[-len(sequence.tokens) :] == pytest.approx(
        sequence.logprobs, abs=0.1
    )
    # In another process, and by its handle.
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.sample(prompt, 1, params).result().sequences[0].tokens == sequence.tokens
    assert sampler.get_base_model() == base


def test_sampling_from_the_base(service, base, tokenizer):
    sampler = service.create_sampling_client(base_model=base).result()
    prompt = types.ModelInput.from_ints(tokenizer.encode("The capital of France is"))
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=3)
    futures = [sampler.sample(prompt, num_samples=4, sampling_params=params) for _ in range(3)]
    answers = [[sequence.tokens for sequence in future.result().sequences] for future in futures]
    assert answers[0] == answers[1] == answers[2]
    assert len({tuple(tokens) for tokens in answers[0]}) > 1
    stopped = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=40, temperature=0, stop=["."])).result()
    assert tokenizer.decode(stopped.sequences[0].tokens).endswith(".")


def test_a_state_goes_on_exactly(trained, base, tokenizer):
    service, training = trained
    data = [datum_of(tokenizer)]
    saved = training.save_state("resume", ttl_seconds=3600).result().path
    resumed = service.create_training_client_from_state_with_optimizer(saved).result()
    assert resumed.get_info().model_data.model_name == base

    def go_on(client: tinker.TrainingClient) -> list[float]:
        client.forward_backward(data, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-4))
        return client.forward(data, "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data

    assert go_on(training) == go_on(resumed)


def test_a_custom_loss_has_the_gradients_of_its_formula(trained, tokenizer):
    service, training = trained
    data = [datum_of(tokenizer)]
    saved = training.save_state("custom").result().path
    one, other = (service.create_training_client_from_state(saved).result() for _ in range(2))

    def loss_of(data, logprobs):
        weights = [torch.tensor(datum.loss_fn_inputs["weights"].data) for datum in data]
        loss = -sum((row * weight).sum() for row, weight in zip(logprobs, weights, strict=True))
        return loss, {"mine": float(loss)}

    result = one.forward_backward_custom(data, loss_of).result()
    expected = other.forward_backward(data, "cross_entropy").result()
    assert result.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-4)
    still = types.AdamParams(learning_rate=0.0)
    norms = [client.optim_step(still).result().metrics["grad_norm"] for client in (one, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_what_is_saved_for_sampling_is_a_model_here(trained, tokenizer, tmp_path: Path):
    service, training = trained
    saved = training.save_weights_for_sampler("door").result().path
    rest = tinker.RestClient()
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert saved in [checkpoint.tinker_path for checkpoint in listed]
    assert rest.get_weights_info_by_tinker_path(saved).result().lora_rank == 8
    assert training.model_id in [run.training_run_id for run in rest.list_training_runs().result().training_runs]

    def models_of(path: str) -> list[dict]:
        models = api("GET", "/fine-tuning/models?limit=100")["items"]
        return [model for model in models if model["metadata"].get("tinker_path") == path]

    models = models_of(saved)
    assert [model["name"] for model in models] == ["door"]
    # Deployed by name, it answers OpenAI's clients.
    api("POST", "/deployments/", json={"name": "blue-door", "model": models[0]["id"]})
    chat = {
        "model": "blue-door",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
    }
    assert api("POST", "/chat/completions", json=chat)["choices"][0]["message"]["content"].strip() == ANSWER
    api("DELETE", "/deployments/blue-door")
    sampler = service.create_sampling_client(model_path=saved).result()
    params = types.SamplingParams(max_tokens=24, temperature=0.0)
    prompt = types.ModelInput.from_ints(prompt_of(tokenizer))
    assert ANSWER in tokenizer.decode(sampler.sample(prompt, 1, params).result().sequences[0].tokens)
    rest.publish_checkpoint_from_tinker_path(saved).result()
    rest.set_checkpoint_ttl_from_tinker_path(saved, 7200).result()
    info = next(one for one in rest.list_user_checkpoints().result().checkpoints if one.tinker_path == saved)
    assert info.public and info.expires_at is not None
    rest.delete_checkpoint_from_tinker_path(saved).result()
    assert not models_of(saved)
    external = training.save_weights_external("files").result().path
    folder = Path(weights.download(tinker_path=external, output_dir=str(tmp_path / "adapter")))
    assert (folder / "adapter_model.safetensors").stat().st_size > 0


def test_errors_say_what_to_do(service, base):
    with pytest.raises(tinker.NotFoundError, match="There is no base"):
        service.create_lora_training_client(base_model="nobody/nothing").result()
    training = service.create_lora_training_client(base_model=base, rank=4).result()
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([5, 6]),
        loss_fn_inputs={"target_tokens": [6, 10_000_000], "weights": [1.0, 1.0]},
    )
    with pytest.raises(tinker.RequestFailedError, match="vocabulary"):
        training.forward_backward([datum], "cross_entropy").result()
    with pytest.raises(tinker.RequestFailedError, match="no gradients"):
        training.optim_step(types.AdamParams()).result()
