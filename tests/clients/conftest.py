"""What the runner tells about the service that is asked. OPENAI_BASE_URL and OPENAI_API_KEY are read by the clients
themselves.
"""

import os

import openai
import pytest


def told(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.exit(f"{name} is not set: these tests are run by npm run test:clients", returncode=2)
    return value


@pytest.fixture(scope="session")
def model() -> str:
    return told("CLIENTS_MODEL")


@pytest.fixture(scope="session")
def embedding_model() -> str:
    return told("CLIENTS_EMBEDDING_MODEL")


@pytest.fixture(scope="session")
def client() -> openai.OpenAI:
    """Without retries, which would hide an error."""
    told("OPENAI_BASE_URL")
    return openai.OpenAI(max_retries=0)
