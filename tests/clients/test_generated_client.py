"""A client that openapi-python-client makes of the API description goes the whole way: upload, train, deploy, call."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROWS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"code of {name}?"}, {"role": "assistant", "content": code}]})
    + "\n"
    for name, code in [("red", "r-1"), ("blue", "b-2"), ("green", "g-3"), ("black", "k-4"), ("white", "w-5")] * 2
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The package, and a client for the service."""
    base_url = os.environ["OPENAI_BASE_URL"]
    folder = tmp_path_factory.mktemp("generated")
    description = folder / "openapi.json"
    description.write_text(httpx.get(f"{base_url}/openapi.json").text)
    command = [str(Path(sys.executable).parent / "openapi-python-client"), "generate", "--path", str(description)]
    done = subprocess.run(
        [*command, "--meta", "none", "--output-path", str(folder / "tunery_client")],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    dropped = [line for line in done.stdout.splitlines() if "Endpoint will not be generated" in line]
    assert dropped == [], "every operation is in the client"
    sys.path.insert(0, str(folder))
    package = importlib.import_module("tunery_client")
    yield package.AuthenticatedClient(base_url=base_url, token=os.environ["OPENAI_API_KEY"])
    sys.path.remove(str(folder))


def test_the_whole_way_through_a_generated_client(generated, model):
    from tunery_client import models, types
    from tunery_client.api.datasets import upload_dataset, validate_dataset
    from tunery_client.api.deployments import create_deployment, delete_deployment
    from tunery_client.api.fine_tuning import create_job, get_job
    from tunery_client.api.inference import chat_completions

    file = types.File(payload=ROWS.encode(), file_name="rows.jsonl")
    dataset = upload_dataset.sync(client=generated, body=models.UploadDatasetBody(file=file, name="generated"))
    assert isinstance(dataset, models.Dataset) and dataset.name == "generated"
    validation = validate_dataset.sync(dataset.id, client=generated)
    assert validation.valid and validation.total_samples == 10

    config = models.JobConfigInput.from_dict({"training_config": {"epochs": 1}})
    body = models.CreateJobInput(model_id=model, dataset_id=dataset.id, config=config)
    job = create_job.sync(client=generated, body=body)
    deadline = time.monotonic() + 240
    while job.status not in ("completed", "failed", "cancelled"):
        assert time.monotonic() < deadline
        time.sleep(0.3)
        job = get_job.sync(job.id, client=generated)
    assert job.status == "completed", job.error

    created = models.CreateDeploymentBody(model=job.model, name="generated")
    assert create_deployment.sync(client=generated, body=created).name == "generated"
    asked = {"model": "generated", "messages": [{"role": "user", "content": "code of red?"}], "max_tokens": 4}
    answer = chat_completions.sync(client=generated, body=models.ChatRequestInput.from_dict(asked))
    assert isinstance(answer, models.ChatResponse) and answer.usage.completion_tokens > 0
    delete_deployment.sync("generated", client=generated)


def test_an_error_of_the_service_is_a_typed_one(generated):
    from tunery_client import models
    from tunery_client.api.fine_tuning import get_job

    error = get_job.sync("job_none", client=generated)
    assert isinstance(error, models.ErrorBody) and error.error.code == "job_not_found"
