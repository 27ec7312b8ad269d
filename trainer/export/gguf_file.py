"""Converts a checkpoint to an unquantized GGUF file, or an adapter to one, with template and end token."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from trainer.export.spec import UNQUANTIZED, Export
from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.model.tensors import FLOATING, read_checkpoint
from trainer.runtime.converters import ENDS, run_converter
from trainer.runtime.errors import JobError
from trainer.runtime.files import sync
from trainer.runtime.json_object import is_object

# The type of the adapter file that the engine serves.
ADAPTER_TYPE = "F16"
ADAPTER_TYPES = ("F32", "F16", "BF16", "Q8_0")


def type_of(spec: Export, checkpoint: Path) -> str:
    """The unquantized type to write: the requested one, or the source for quantizing by the library.

    For quantizing: F32 for a checkpoint in float32, F16 for one in 16 bits. F16 stores a merged sum with eight times
    finer steps than BF16.
    """
    if spec.quantization in UNQUANTIZED:
        return spec.quantization
    kinds = {
        entry.dtype
        for entry in read_checkpoint(checkpoint).values()
        if entry.dtype in FLOATING and len(entry.shape) > 1
    }
    return "F16" if kinds <= {"F16", "BF16"} else "F32"


def convert(spec: Export, folder: Path, file: Path, kind: str) -> None:
    """Converts the checkpoint in `folder` to `file`. Raises JobError if the file does not match the folder."""
    # One argument: a name may start with a hyphen, as options do.
    arguments = [str(folder), "--outfile", str(file), "--outtype", kind.lower(), f"--model-name={spec.model.name}"]
    run_converter(Path(spec.converters), "convert_hf_to_gguf.py", arguments)
    require_described(file, folder)
    sync(file)


def require_described(file: Path, folder: Path) -> None:
    """Raises JobError if the file lacks the folder's template or its end token."""
    from trainer.runtime.gguf_reader import GgufReader

    if not file.exists():
        raise JobError("internal", "The converter left no file.")
    fields = GgufReader(file).fields
    template = fields.get("tokenizer.chat_template")
    if template is None or template.contents() != (folder / "chat_template.jinja").read_text():
        raise JobError("internal", "The converted file lacks the model's chat template.")
    tokens = fields["tokenizer.ggml.tokens"]
    ends = [tokens.contents(int(fields[name].contents())) for name in ENDS if name in fields]
    expected: Any = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    expected = expected["content"] if is_object(expected) else expected
    if expected and expected not in ends:
        raise JobError("internal", f"Answers of the converted file do not end with {expected}.")


def adapter_file(spec: Export, out: Path) -> Path:
    """Writes the adapter alone: the file that the engine serves, or a conversion to another type with the same
    metadata. Raises JobError("parameter_not_supported") for a type that adapters cannot have.
    """
    kind = spec.quantization or ADAPTER_TYPE
    if kind not in ADAPTER_TYPES:
        raise JobError("parameter_not_supported", f"An adapter alone can be {', '.join(ADAPTER_TYPES)}, not {kind}.")
    file = out / f"{spec.name}-adapter-{kind}.gguf"
    if kind == ADAPTER_TYPE:
        link_or_copy(Path(spec.model.gguf), file)
    else:
        write_adapter_gguf(Path(spec.converters), Path(spec.base.path), Path(spec.model.folder), file, kind.lower())
        _describe_like(file, Path(spec.model.gguf))
    sync(file)
    return file


def _describe_like(file: Path, served: Path) -> None:
    """Copies the served file's template, end token and base, which the converter does not write."""
    import gguf
    from gguf.scripts.gguf_new_metadata import (  # pyright: ignore[reportMissingTypeStubs]
        MetadataDetails,
        copy_with_new_metadata,
    )

    from trainer.runtime.gguf_reader import GgufReader

    names = ("tokenizer.chat_template", "tunery.base_model_id", "tunery.eos_token", "tunery.tokenizer_sha256")
    fields = GgufReader(served).fields
    text = gguf.GGUFValueType.STRING
    added = {name: MetadataDetails(text, fields[name].contents()) for name in names if name in fields}
    reader = GgufReader(file)
    rewritten = file.with_suffix(".whole")
    writer = gguf.GGUFWriter(rewritten, reader.fields["general.architecture"].contents())
    copy_with_new_metadata(reader, writer, added, [])
    rewritten.rename(file)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link if the disk supports it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
