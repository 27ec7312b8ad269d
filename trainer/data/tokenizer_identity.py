"""The identity of a job's tokenizer, chat template and end token: it must not change after the job's creation, and
exports contain it.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.data.tokenizer import Tokenizer
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import ModelSpec, Spec, TokenizerIdentity


def identity_of(tokenizer: Tokenizer, folder: Path) -> TokenizerIdentity:
    """The hashes of a tokenizer in its folder, and its end token."""
    file = folder / "tokenizer.json"
    template = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
    return TokenizerIdentity(sha256_of(file) if file.exists() else None, template, tokenizer.eos_token)


def require_unchanged(tokenizer: Tokenizer, spec: Spec) -> None:
    """Raises JobError("base_missing") if the base's files have changed since the job was created."""
    identity = identity_of(tokenizer, Path(spec.base.path))
    if spec.tokenizer and identity != spec.tokenizer:
        names = {"sha256": "tokenizer", "chat_template_sha256": "chat template", "eos_token": "end token"}
        changed = [label for name, label in names.items() if getattr(identity, name) != getattr(spec.tokenizer, name)]
        message = (
            f"The {' and '.join(changed)} of {spec.base.id} changed after this job was created. Create the job again."
        )
        raise JobError("base_missing", message)


def describe(tokenizer: Tokenizer, spec: ModelSpec) -> dict[str, Any]:
    """The content of `tunery.json` in an exported folder."""
    identity = asdict(identity_of(tokenizer, Path(spec.base.path)))
    return {"job_id": spec.job_id, "base_model_id": spec.base.id, "method": spec.method, "tokenizer": identity}


def write_description(folder: Path, tokenizer: Tokenizer, spec: ModelSpec) -> None:
    """Writes `tunery.json` into an exported folder."""
    (folder / "tunery.json").write_text(json.dumps(describe(tokenizer, spec), indent=1) + "\n")


def add_to_gguf(file: Path, tokenizer: Tokenizer, spec: ModelSpec) -> None:
    """Adds the template, end token and tokenizer hash to an adapter's GGUF file; the converter adds them only to whole
    models.
    """
    import gguf
    from gguf.scripts.gguf_new_metadata import (  # pyright: ignore[reportMissingTypeStubs]
        MetadataDetails,
        copy_with_new_metadata,
    )

    from trainer.runtime.gguf_reader import GgufReader

    identity, text = identity_of(tokenizer, Path(spec.base.path)), gguf.GGUFValueType.STRING
    added = {
        "tokenizer.chat_template": MetadataDetails(text, tokenizer.chat_template),
        "tunery.base_model_id": MetadataDetails(text, spec.base.id),
        "tunery.eos_token": MetadataDetails(text, identity.eos_token or ""),
        "tunery.tokenizer_sha256": MetadataDetails(text, identity.sha256 or ""),
    }
    reader = GgufReader(file)
    rewritten = file.with_suffix(".whole")
    architecture = reader.get_field("general.architecture")
    assert architecture is not None, "the converter writes it"
    writer = gguf.GGUFWriter(rewritten, architecture.contents())
    copy_with_new_metadata(reader, writer, added, [])
    rewritten.rename(file)
