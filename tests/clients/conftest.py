"""Fixtures from the environment that the test runner sets. The clients read OPENAI_BASE_URL and OPENAI_API_KEY
themselves.
"""

import os

import openai
import pytest


def required_env(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.exit(f"{name} is not set: these tests are run by npm run test:clients", returncode=2)
    return value


@pytest.fixture(scope="session")
def model() -> str:
    return required_env("CLIENTS_MODEL")


@pytest.fixture(scope="session")
def embedding_model() -> str:
    return required_env("CLIENTS_EMBEDDING_MODEL")


@pytest.fixture(scope="session")
def client() -> openai.OpenAI:
    """No retries, which would hide errors."""
    required_env("OPENAI_BASE_URL")
    return openai.OpenAI(max_retries=0)
