"""Fixtures for Tinker's own SDK and cookbook, against the service whose address and key the environment has.

The base is asked for by the name of one that the cookbook knows: the operator maps it to the packaged base, whose
control tokens are the same. Nothing here changes what the SDK or a recipe does.
"""

import os
from collections.abc import Iterator

import pytest
import tinker
from tinker_cookbook.tokenizer_utils import register_tokenizer
from transformers import AutoTokenizer


def required_env(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.exit(f"{name} is not set: these tests are run by npm run test:clients", returncode=2)
    return value


@pytest.fixture(scope="session")
def base() -> str:
    return required_env("TINKER_TEST_MODEL")


@pytest.fixture(scope="session")
def tokenizer(base: str):
    """That of the packaged base. The cookbook gets it by the mapped name, as Hugging Face cannot be reached."""
    loaded = AutoTokenizer.from_pretrained(required_env("TINKER_TEST_TOKENIZER"))
    register_tokenizer(base, lambda: loaded)
    return loaded


@pytest.fixture
def service() -> Iterator[tinker.ServiceClient]:
    required_env("TINKER_BASE_URL")
    required_env("TINKER_API_KEY")
    with tinker.ServiceClient(user_metadata={"made_by": "tests"}) as client:
        yield client
