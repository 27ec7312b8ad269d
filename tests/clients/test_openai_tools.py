"""The official client for Python: tools and structured output, by its parse and streaming helpers."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: Literal["Paris", "Oslo"]
    days: int = Field(ge=1, le=7)


class Ticket(BaseModel):
    urgent: bool
    team: Literal["billing", "support"]


ASK = [{"role": "user", "content": "What is the weather in Paris for 2 days?"}]
TOOLS = [openai.pydantic_function_tool(Weather)]


def request(model, **fields):
    return {"model": model, "messages": ASK, "tools": TOOLS, "max_tokens": 200, "temperature": 0, **fields}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Weather"}}])
def test_a_call_is_parsed_into_its_model(client, model, choice):
    answer = client.chat.completions.parse(**request(model, tool_choice=choice))
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in calls)


def test_streamed_calls_are_gathered(client, model):
    with client.chat.completions.stream(**request(model, tool_choice="required")) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in final.choices[0].message.tool_calls)


def test_tool_results_are_accepted(client, model):
    first = client.chat.completions.create(**request(model, tool_choice="required", parallel_tool_calls=False))
    message = first.choices[0].message
    assert len(message.tool_calls) == 1
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": json.dumps({"weather": "sunny"})}
    second = client.chat.completions.create(
        **request(model, messages=[*ASK, message, result], tool_choice="none", max_tokens=10)
    )
    assert isinstance(second.choices[0].message.content, str)


def test_structured_output_is_parsed(client, model):
    fields = {"model": model, "messages": ASK, "response_format": Ticket, "max_tokens": 200, "temperature": 0}
    assert isinstance(client.chat.completions.parse(**fields).choices[0].message.parsed, Ticket)
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Ticket)


def test_an_answer_cut_by_its_length_raises(client, model):
    class Long(BaseModel):
        text: str = Field(min_length=300)

    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=model, messages=ASK, response_format=Long, max_tokens=5)


def test_a_schema_that_cannot_be_enforced(client, model):
    schema = {"name": "x", "strict": True, "schema": {"not": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model=model, messages=ASK, response_format={"type": "json_schema", "json_schema": schema}
        )
    assert raised.value.code == "schema_not_enforceable"
