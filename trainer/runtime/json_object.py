"""Objects in JSON."""

from typing import Any, TypeGuard


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a value that was parsed as JSON is an object."""
    return isinstance(value, dict)
