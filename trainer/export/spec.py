"""The export's specification: `spec.json` as typed values, checked once."""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trainer.runtime.errors import JobError

# Takes the finished share, 0 to 1, of a named part of an export.
StageReport = Callable[[str, float], None]

# The types of a Hugging Face folder's weights, and of an unquantized GGUF file.
DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
UNQUANTIZED = ("F32", "F16", "BF16")
FORMATS = ("huggingface", "gguf", "onnx")
# Windows does not allow files with these names, whatever follows their first dot.
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def instead_of(impossible: str) -> str:
    """What a user can do where an export in this format is impossible."""
    return f"Export it as {' or '.join(other for other in FORMATS if other != impossible)}."


@dataclass(frozen=True)
class Model:
    """`kind`: adapter (`folder` is PEFT's) or model (`folder` is a whole checkpoint). `gguf` is the file that the
    engine serves.
    """

    id: str
    name: str
    kind: str
    method: str
    folder: str
    gguf: str


@dataclass(frozen=True)
class Base:
    """The full checkpoint below an adapter: a base model, or another tuned model."""

    id: str
    path: str
    gguf: str | None = None
    license: str | None = None


@dataclass(frozen=True)
class Export:
    """What to export, of which model, and what it needs. `format`: huggingface, gguf or onnx. `quantization`: the type
    of the weights, None for their own. `merge`: whether an adapter is merged into its base. `archive`: tar or zip, None
    for the files themselves. `probe`: the model's probe.json, if there is one. `reference`: the file of its reference
    answers. `card`: facts for the model card.
    """

    export_id: str
    format: str
    quantization: str | None
    merge: bool
    archive: str | None
    model: Model
    base: Base
    probe: str | None
    reference: str
    converters: str
    threads: int
    # The model's importance matrix if one is needed (trainer/export/importance.py), and the rows to measure it with.
    importance: str | None = None
    rows: str | None = None
    # Whether control tokens spelled in the text of a row are parsed, as in the model's training and serving.
    parse_control_tokens: bool = False
    card: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def sees(self) -> bool:
        """Whether the model reads pictures."""
        folder = Path(self.model.folder if self.model.kind == "model" else self.base.path)
        return "vision_config" in json.loads((folder / "config.json").read_text())

    @property
    def adapter_alone(self) -> bool:
        """Whether the adapter is exported without its base."""
        return not self.merge and self.model.kind == "adapter"

    @property
    def name(self) -> str:
        """The model's name for files and folders: at most 80 of A-Z, a-z, 0-9, dot, underscore and hyphen, without
        accents.

        The model's id if no such character is left, as of a name in another alphabet.
        """
        letters = "".join(
            letter for letter in unicodedata.normalize("NFKD", self.model.name) if not unicodedata.combining(letter)
        )
        safe_name = re.sub(r"[-.]{2,}", "-", re.sub(r"[^A-Za-z0-9._]+", "-", letters)).strip("-._")[:80].rstrip("-._")
        return self.model.id if not safe_name or RESERVED.match(safe_name) else safe_name

    @property
    def folder_name(self) -> str:
        """The name of an exported folder and of its archive."""
        parts = [
            self.name,
            "adapter" if self.adapter_alone else "",
            "onnx" if self.format == "onnx" else "",
            self.quantization or "",
        ]
        return "-".join(part for part in parts if part)


def _typed(kind: type, values: dict[str, Any]) -> Any:
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def read_spec(folder: Path) -> Export:
    """Raises JobError("internal") if `folder/spec.json` is missing, malformed or asks for something unknown."""
    try:
        values = json.loads((folder / "spec.json").read_text())
        values["model"] = _typed(Model, values["model"])
        values["base"] = _typed(Base, values["base"])
        values["card"] = values.get("card") or {}
        spec = _typed(Export, values)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise JobError("internal", f"spec.json cannot be used: {problem!r}.") from problem
    for name, allowed in (("format", ("huggingface", "gguf", "onnx")), ("archive", (None, "tar", "zip"))):
        if getattr(spec, name) not in allowed:
            raise JobError("internal", f"spec.json: {name} is {getattr(spec, name)!r}.")
    if spec.model.kind not in ("adapter", "model"):
        raise JobError("internal", f"spec.json: a model cannot be of the kind {spec.model.kind!r}.")
    if spec.format == "huggingface" and spec.quantization is not None and spec.quantization not in DTYPES:
        raise JobError(
            "internal", f"A Hugging Face folder is written in {', '.join(DTYPES)} and not in {spec.quantization}."
        )
    return spec
