"""The suites of llm-comply for Chat Completions and Open Responses."""

import os
from importlib.resources import files

import openai
import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.result import TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader
from llm_comply.test_case import TestCase
from llm_comply.tests import get_tests

SUITES = {"openai-chat": "openai_chat.json", "open-responses": "openresponses.json"}

# What the base cannot do. The service must say so, in an error that names the field.
BASE_CANNOT = {
    "chat-image-input": "messages.0.content",
    "image-input": "input",
}


def runner(client: openai.OpenAI, model: str, suite: str) -> TestRunner:
    spec = SpecLoader(str(files("llm_comply") / "specs" / SUITES[suite]))
    config = ComplianceConfig(
        base_url=str(client.base_url).rstrip("/"), api_key=os.environ["OPENAI_API_KEY"], model=model, verbose=True
    )
    return TestRunner(config, get_tests(suite), spec)


@pytest.mark.parametrize(
    ("suite", "case"),
    [pytest.param(suite, case, id=case.id) for suite in SUITES for case in get_tests(suite)],
)
def test_the_service_complies(client: openai.OpenAI, model: str, suite: str, case: TestCase) -> None:
    result = runner(client, model, suite).run_one(case)
    if result.status == TestStatus.SKIPPED:
        pytest.skip(f"llm-comply skips it: {result.errors[0]}")
    if field := BASE_CANNOT.get(case.id):
        assert result.errors[0].startswith("HTTP 400")
        assert result.response["error"]["param"].startswith(field)
    else:
        assert result.status == TestStatus.PASSED, result.errors
