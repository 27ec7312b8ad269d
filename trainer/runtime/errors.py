"""Errors that end a run and that its owner can act on."""

import re

PATHS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")


class JobError(Exception):
    """A failure with a code from the service's list and a message for users.

    Codes: out_of_memory, dataset_invalid, base_missing, adapter_invalid, non_finite_loss, storage_full, internal.
    """

    def __init__(self, code: str, message: str, **data: object) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def without_paths(text: str) -> str:
    """Removes the folders from file paths in a library's message: users must not see where the service stores files."""
    return PATHS.sub("", text)
