# Not installed with the trainer, and untyped here.
from typing import Any

def __getattr__(name: str) -> Any: ...
