"""What ends a run in a way that its owner can act on."""

import re

PLACES = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")


class JobError(Exception):
    """A failure with a code of the service's list and a sentence for people.

    Codes: out_of_memory, dataset_invalid, base_missing, adapter_invalid, non_finite_loss, storage_full, internal.
    """

    def __init__(self, code: str, message: str, **data: object) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def without_places(text: str) -> str:
    """What a library says of files, with their names alone: where a service keeps them is nobody's business."""
    return PLACES.sub("", text)
