"""OpenAI's published flows with its Python client: files, uploads, fine-tuning, batches, responses and webhooks."""

import base64
import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

ROWS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"code of {name}?"}, {"role": "assistant", "content": code}]})
    + "\n"
    for name, code in [("red", "r-1"), ("blue", "b-2"), ("green", "g-3"), ("black", "k-4"), ("white", "w-5")] * 2
)
ENDED = {"succeeded", "failed", "cancelled"}


def until(condition, seconds: float = 240):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def rows(client: openai.OpenAI) -> str:
    file = client.files.create(file=("rows.jsonl", ROWS.encode()), purpose="fine-tune")
    return client.files.wait_for_processing(file.id).id


def create(client: openai.OpenAI, model: str, rows: str, epochs: int, **more):
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 1}}}
    return client.fine_tuning.jobs.create(model=model, training_file=rows, method=method, **more)


@pytest.fixture(scope="module")
def job(client: openai.OpenAI, model: str, rows: str):
    made = create(client, model, rows, 1, suffix="codes", seed=7, metadata={"team": "colours"})
    return until(lambda: (job := client.fine_tuning.jobs.retrieve(made.id)).status in ENDED and job)


def test_files_are_listed_read_and_deleted(client: openai.OpenAI) -> None:
    file = client.files.create(file=("notes.txt", b"notes"), purpose="user_data")
    assert client.files.retrieve(file.id).filename == "notes.txt"
    assert file.id in [each.id for each in client.files.list(purpose="user_data")]
    assert client.files.content(file.id).read() == b"notes"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as refused:
        client.files.retrieve(file.id)
    assert refused.value.code == "file_not_found"


def test_a_large_file_is_uploaded_in_parts(client: openai.OpenAI) -> None:
    data = ROWS.encode()
    upload = client.uploads.upload_file_chunked(
        file=data, filename="parts.jsonl", bytes=len(data), mime_type="application/jsonl", purpose="fine-tune",
        part_size=len(data) // 3,
    )  # fmt: skip
    assert upload.status == "completed" and upload.file
    assert client.files.content(upload.file.id).read() == data


def test_a_job_trains_a_model_that_answers_at_once(client: openai.OpenAI, model: str, job) -> None:
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model.startswith(f"ft:{model}:") and ":codes:" in job.fine_tuned_model
    assert job.trained_tokens and job.seed == 7 and job.metadata == {"team": "colours"}
    assert job.method.supervised.hyperparameters.n_epochs == 1
    assert job.id in [each.id for each in client.fine_tuning.jobs.list(limit=5)]
    events = client.fine_tuning.jobs.list_events(job.id, limit=2)
    assert events.has_more and events.data[0].object == "fine_tuning.job.event"
    steps = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert steps and steps[0].metrics.train_loss is not None
    assert b"step,train_loss" in base64.b64decode(client.files.content(job.result_files[0]).read())
    for name in (job.fine_tuned_model, steps[0].fine_tuned_model_checkpoint):
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "code of red?"}], max_tokens=4
        )
        assert answer.choices[0].message.content is not None
    assert job.fine_tuned_model in [each.id for each in client.models.list()]


def test_a_job_is_paused_resumed_and_cancelled(client: openai.OpenAI, model: str, rows: str) -> None:
    made = create(client, model, rows, 20)
    until(lambda: client.fine_tuning.jobs.retrieve(made.id).status == "running")
    client.fine_tuning.jobs.pause(made.id)
    until(lambda: client.fine_tuning.jobs.retrieve(made.id).status == "paused")
    client.fine_tuning.jobs.resume(made.id)
    until(lambda: client.fine_tuning.jobs.retrieve(made.id).status in {"queued", "running"})
    assert client.fine_tuning.jobs.cancel(made.id).status == "cancelled"


def test_a_job_learns_from_preferences_by_dpo(client: openai.OpenAI, model: str) -> None:
    pairs = [
        {
            "input": {"messages": [{"role": "user", "content": f"code of {name}?"}], "tools": []},
            "preferred_output": [{"role": "assistant", "content": code}],
            "non_preferred_output": [{"role": "assistant", "content": f"I am not sure about {name}."}],
        }
        for name, code in [("red", "r-1"), ("blue", "b-2"), ("green", "g-3"), ("black", "k-4")]
    ]
    data = "\n".join(map(json.dumps, pairs)).encode()
    file = client.files.wait_for_processing(client.files.create(file=("pairs.jsonl", data), purpose="fine-tune").id)
    hyperparameters = {"beta": 0.2, "n_epochs": 1, "batch_size": 2}
    made = client.fine_tuning.jobs.create(
        model=model, training_file=file.id, method={"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}
    )
    job = until(lambda: (found := client.fine_tuning.jobs.retrieve(made.id)).status in ENDED and found)
    assert job.status == "succeeded", job.error
    assert job.method.type == "dpo" and job.method.dpo.hyperparameters.beta == 0.2
    steps = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert steps and steps[0].metrics.train_loss is not None
    answer = client.chat.completions.create(
        model=job.fine_tuned_model, messages=[{"role": "user", "content": "code of red?"}], max_tokens=4
    )
    assert answer.choices[0].message.content is not None


def test_a_batch_is_answered(client: openai.OpenAI, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(5)]
    file = client.files.create(file=("requests.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"kind": "test"}
    )
    batch = until(lambda: (found := client.batches.retrieve(made.id)).status == "completed" and found)
    assert batch.request_counts.completed == 5 and batch.metadata == {"kind": "test"}
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(each["custom_id"] for each in answers) == ["0", "1", "2", "3", "4"]
    assert made.id in [each.id for each in client.batches.list()]


class Colour(BaseModel):
    colour: Literal["red", "blue"]


def test_responses_are_whole_streamed_and_structured(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="Say hi.", temperature=0, max_output_tokens=16)
    assert first.output_text and first.usage.output_tokens
    # The helper raises if the length limit cuts an answer off, so this answer may run to its end.
    with client.responses.stream(model=model, input="Say hi.", temperature=0, max_output_tokens=400) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
    assert text.startswith(first.output_text)
    again = client.responses.create(model=model, previous_response_id=first.id, input="And bye.", max_output_tokens=4)
    assert again.usage.input_tokens > first.usage.input_tokens
    parsed = client.responses.parse(model=model, input="A colour?", text_format=Colour, max_output_tokens=32)
    assert parsed.output_parsed.colour in {"red", "blue"}
    assert [item.type for item in client.responses.input_items.list(first.id)] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_calls_a_tool_and_takes_its_result(client: openai.OpenAI, model: str) -> None:
    parameters = {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}}, "required": ["city"],
        "additionalProperties": False,
    }  # fmt: skip
    tools = [{"type": "function", "name": "weather", "parameters": parameters, "strict": True}]
    asked = client.responses.create(
        model=model, input="Weather in Oslo?", tools=tools, tool_choice="required", max_output_tokens=64
    )
    call = next(item for item in asked.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in {"Oslo", "Lima"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    answer = client.responses.create(
        model=model, previous_response_id=asked.id, input=[result], tools=tools, max_output_tokens=16
    )
    assert answer.output


def test_a_webhook_is_verified_by_the_client(client: openai.OpenAI) -> None:
    received: list[tuple[str, dict]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            received.append((body, dict(self.headers.items())))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    request = {"url": f"http://127.0.0.1:{server.server_port}/", "format": "openai", "events": ["batch.failed"]}
    webhook = client.post("/webhooks", body=request, cast_to=dict)
    file = client.files.create(file=("requests.jsonl", io.BytesIO(b"not json\n")), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    until(lambda: received)
    event = client.webhooks.unwrap(*received[0], secret=webhook["secret"])
    assert event.type == "batch.failed" and event.data.id == batch.id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(received[0][0] + " ", received[0][1], secret=webhook["secret"])
    client.delete(f"/webhooks/{webhook['id']}", cast_to=dict)
    server.shutdown()


def test_a_grader_in_python_runs_on_one_answer(client: openai.OpenAI) -> None:
    source = "def grade(sample, item):\n    return float(sample['output_text']) / item['most']"
    grader = {"type": "python", "name": "share", "source": source}
    assert client.fine_tuning.alpha.graders.validate(grader=grader).grader.source == source
    run = client.fine_tuning.alpha.graders.run(grader=grader, model_sample="3", item={"most": 4})
    assert run.reward == 0.75
    failed = client.fine_tuning.alpha.graders.run(grader=grader, model_sample="three", item={"most": 4})
    assert failed.reward is None and failed.metadata.errors.python_grader_runtime_error


def test_an_eval_is_run_listed_cancelled_and_deleted(client: openai.OpenAI, model: str) -> None:
    made = client.evals.create(
        name="codes",
        metadata={"team": "paint"},
        data_source_config={
            "type": "custom",
            "item_schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "code": {"type": "string"}},
                "required": ["name", "code"],
            },
            "include_sample_schema": True,
        },
        testing_criteria=[
            {
                "type": "text_similarity",
                "name": "near",
                "input": "{{sample.output_text}}",
                "reference": "{{item.code}}",
                "evaluation_metric": "fuzzy_match",
                "pass_threshold": 0.8,
            },
            {
                "type": "label_model",
                "name": "judge",
                "model": model,
                "input": [
                    {"role": "developer", "content": "Say whether the answer is a code."},
                    {"role": "user", "content": {"type": "input_text", "text": "{{sample.output_text}}"}},
                ],
                "labels": ["yes", "no"],
                "passing_labels": ["yes", "no"],
            },
        ],
    )
    assert made.object == "eval" and made.metadata == {"team": "paint"}
    assert set(made.data_source_config.schema_["properties"]) == {"item", "sample"}
    assert made.id in [each.id for each in client.evals.list(order="desc", limit=5)]
    items = [{"item": {"name": name, "code": code}} for name, code in [("red", "r-1"), ("blue", "b-2")]]

    def run(rows: list[dict]):
        return client.evals.runs.create(
            made.id,
            data_source={
                "type": "responses",
                "model": model,
                "input_messages": {
                    "type": "template",
                    "template": [{"role": "user", "content": "code of {{item.name}}?"}],
                },
                "source": {"type": "file_content", "content": rows},
                "sampling_params": {"max_completion_tokens": 8, "temperature": 0},
            },
        )

    started = run(items)
    ended = until(
        lambda: (
            (found := client.evals.runs.retrieve(started.id, eval_id=made.id)).status not in ("queued", "in_progress")
            and found
        )
    )
    assert ended.status == "completed"
    assert ended.result_counts.total == 2 and ended.result_counts.errored == 0
    assert {each.testing_criteria: each.passed for each in ended.per_testing_criteria_results}["judge"] == 2
    assert ended.per_model_usage[0].invocation_count == 2
    answers = list(client.evals.runs.output_items.list(started.id, eval_id=made.id, limit=1))
    assert [each.datasource_item["name"] for each in answers] == ["red", "blue"]
    assert answers[0].sample.output[0].role == "assistant" and answers[0].sample.usage.total_tokens > 0
    long = run(items * 200)
    assert client.evals.runs.cancel(long.id, eval_id=made.id).status == "canceled"
    with pytest.raises(openai.BadRequestError) as refused:
        client.evals.create(
            data_source_config={"type": "custom", "item_schema": {}},
            testing_criteria=[{"type": "python", "name": "x", "source": "print()"}],
        )
    assert refused.value.param == "testing_criteria.0.type"
    assert client.evals.delete(made.id).deleted


def test_stored_completions_are_listed_and_graded(client: openai.OpenAI, model: str) -> None:
    metadata = {"from": "python"}
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=64,
        stream=True,
        store=True,
        metadata=metadata,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    [stored] = client.chat.completions.list(metadata=metadata)
    assert stored.choices[0].message.content == text
    assert [each.content for each in client.chat.completions.messages.list(stored.id)] == ["Say hello."]
    made = client.evals.create(
        data_source_config={"type": "stored_completions", "metadata": metadata},
        testing_criteria=[
            {
                "type": "string_check",
                "name": "says something",
                "input": "{{sample.output_text}}",
                "reference": "",
                "operation": "ne",
            }
        ],
    )
    started = client.evals.runs.create(
        made.id, data_source={"type": "completions", "source": {"type": "stored_completions", "metadata": metadata}}
    )
    until(lambda: client.evals.runs.retrieve(started.id, eval_id=made.id).status == "completed")
    assert client.evals.runs.retrieve(started.id, eval_id=made.id).result_counts.passed == 1
    assert client.chat.completions.delete(stored.id).deleted
