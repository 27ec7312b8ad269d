"""The official client for Python: chat, completions, embeddings, models and errors."""

import base64
import math
import os
import signal
import struct
from pathlib import Path

import openai
import pytest

HI = [{"role": "user", "content": "Hi"}]


def test_a_complete_answer(client, model):
    answer = client.chat.completions.create(model=model, messages=HI, max_tokens=6, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == model
    assert answer.choices[0].message.role == "assistant"
    assert isinstance(answer.choices[0].message.content, str)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_a_stream_is_the_same_answer(client, model):
    request = {"model": model, "messages": HI, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    last = chunks.pop()
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]


def test_the_streaming_helper(client, model):
    # The helper raises if the length limit cuts an answer off, so this answer may run to its end.
    with client.chat.completions.stream(model=model, messages=HI, temperature=0, max_tokens=400) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.content, str)


def test_n_and_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=HI, max_tokens=4, n=2, logprobs=True, top_logprobs=2, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        for entry in choice.logprobs.content:
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 2


@pytest.mark.parametrize("prompt", ["Hello", ["Hello", "World"], [504, 3575], [[504, 3575], [504]]])
def test_completions(client, model, prompt):
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=3, temperature=0)
    count = len(prompt) if isinstance(prompt[0], list) or prompt == ["Hello", "World"] else 1
    assert [choice.index for choice in answer.choices] == list(range(count))


def test_completions_echo_and_score(client, model):
    answer = client.completions.create(model=model, prompt="Paris is in France", max_tokens=0, echo=True, logprobs=1)
    assert answer.choices[0].text == "Paris is in France"
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def test_completions_streamed(client, model):
    request = {"model": model, "prompt": "Once", "max_tokens": 5, "temperature": 0}
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True))
    assert text == client.completions.create(**request).choices[0].text


def test_embeddings_base64_by_default_and_float_are_the_same(client, embedding_model):
    default = client.embeddings.create(model=embedding_model, input=["a cat", "a train"])
    floats = client.embeddings.create(model=embedding_model, input=["a cat", "a train"], encoding_format="float")
    for one, other in zip(default.data, floats.data, strict=True):
        assert len(one.embedding) == len(other.embedding) > 8
        assert all(math.isclose(a, b, abs_tol=1e-3) for a, b in zip(one.embedding, other.embedding, strict=True))
    raw = client.embeddings.create(model=embedding_model, input="x", encoding_format="base64").data[0].embedding
    data = base64.b64decode(raw)
    assert all(math.isfinite(value) for value in struct.unpack(f"<{len(data) // 4}f", data))


def test_models(client, model):
    assert model in [each.id for each in client.models.list()]
    assert client.models.retrieve(model).object == "model"


@pytest.mark.parametrize(
    ("fields", "kind", "code", "param"),
    [
        ({"model": "nobody/nothing"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 9}, openai.BadRequestError, "invalid_request", "temperature"),
        ({"messages": []}, openai.BadRequestError, "invalid_request", "messages"),
        (
            {"messages": [{"role": "user", "content": "word " * 20_000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            None,
        ),
    ],
)
def test_errors(client, model, fields, kind, code, param):
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**{"model": model, "messages": HI, **fields})
    assert raised.value.code == code
    if param:
        assert raised.value.param == param
    assert raised.value.request_id


def test_a_wrong_key(client, model):
    with pytest.raises(openai.AuthenticationError) as raised:
        client.with_options(api_key="tun_wrong").chat.completions.create(model=model, messages=HI)
    assert raised.value.code == "invalid_api_key"


async def test_many_at_once_with_the_async_client(client, model):
    import asyncio

    async with openai.AsyncOpenAI(max_retries=0) as other:
        one = other.chat.completions.create(model=model, messages=HI, max_tokens=4)
        answers = await asyncio.gather(
            one, *(other.chat.completions.create(model=model, messages=HI, max_tokens=4) for _ in range(7))
        )
    assert len({answer.id for answer in answers}) == 8


async def test_a_stream_closed_early_raises_nothing(client, model):
    stream = client.chat.completions.create(model=model, messages=HI, max_tokens=500, stream=True)
    for _ in stream:
        break
    stream.close()
    assert client.chat.completions.create(model=model, messages=HI, max_tokens=1).choices


def engine_pid() -> int:
    """The process id of the service's current engine."""
    service = os.environ["CLIENTS_SERVICE_PID"]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if (
                f"PPid:\t{service}\n" in status.read_text()
                and "engine/main.ts" in (status.parent / "cmdline").read_text()
            ):
                return int(status.parent.name)
        except OSError:
            continue
    raise AssertionError("the service has no engine")


def test_an_engine_crash_during_a_stream_raises(client, model):
    seen = 0
    with pytest.raises(openai.APIError):
        # Without end tokens the answer cannot end by itself.
        for _ in client.chat.completions.create(
            model=model, messages=HI, max_tokens=4000, logit_bias={"0": -100, "2": -100}, stream=True
        ):
            seen += 1
            if seen == 5:
                os.kill(engine_pid(), signal.SIGKILL)
    assert seen >= 5
    again = client.with_options(max_retries=2).chat.completions.create(model=model, messages=HI, max_tokens=2)
    assert again.choices
