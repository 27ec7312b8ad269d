"""The tokenizer, chat template and end token that a job was created with: they must not change under it, and go out
with its result.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from trainer.cli.prepare_base import sha256_of
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Frozen, Spec


def frozen_of(tokenizer, folder: Path) -> Frozen:
    file = folder / "tokenizer.json"
    template = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
    return Frozen(sha256_of(file) if file.exists() else None, template, tokenizer.eos_token)


def require_unchanged(tokenizer, spec: Spec) -> None:
    """Raises JobError("base_missing") where the base's files say otherwise than when the job was created."""
    found = frozen_of(tokenizer, Path(spec.base.path))
    if spec.tokenizer and found != spec.tokenizer:
        names = {"sha256": "tokenizer", "chat_template_sha256": "chat template", "eos_token": "end token"}
        changed = [shown for name, shown in names.items() if getattr(found, name) != getattr(spec.tokenizer, name)]
        message = f"The {' and '.join(changed)} of {spec.base.id} changed after this job was created. Create the job again."
        raise JobError("base_missing", message)


def describe(tokenizer, spec: Spec) -> dict:
    """What an exported folder says of itself in `tunery.json`."""
    frozen = asdict(frozen_of(tokenizer, Path(spec.base.path)))
    return {"job_id": spec.job_id, "base_model_id": spec.base.id, "method": spec.method, "tokenizer": frozen}


def write_description(folder: Path, tokenizer, spec: Spec) -> None:
    (folder / "tunery.json").write_text(json.dumps(describe(tokenizer, spec), indent=1) + "\n")


def add_to_gguf(file: Path, tokenizer, spec: Spec) -> None:
    """Writes template, end token and the tokenizer's hash into an adapter's file; the converter writes them for whole
    models alone.
    """
    import gguf
    from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

    frozen, text = frozen_of(tokenizer, Path(spec.base.path)), gguf.GGUFValueType.STRING
    added = {
        "tokenizer.chat_template": MetadataDetails(text, tokenizer.chat_template),
        "tunery.base_model_id": MetadataDetails(text, spec.base.id),
        "tunery.eos_token": MetadataDetails(text, frozen.eos_token or ""),
        "tunery.tokenizer_sha256": MetadataDetails(text, frozen.sha256 or ""),
    }
    reader = gguf.GGUFReader(file)
    whole = file.with_suffix(".whole")
    writer = gguf.GGUFWriter(whole, reader.get_field("general.architecture").contents())
    copy_with_new_metadata(reader, writer, added, [])
    whole.rename(file)
