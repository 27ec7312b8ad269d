"""Writes an adapter for the engine after each step."""

import shutil
from pathlib import Path

from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.model.experts import describe_to_peft
from trainer.model.model import Model
from trainer.run.convert_to_gguf import ADAPTER_TYPE
from trainer.runtime.errors import converting
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import ModelSpec


class Pusher:
    """Converts adapters of one base, without the tokenizer and the description that a result has beside them."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def write(self, model: Model, out: Path) -> str:
        """Writes `out/adapter/` and `out/adapter.gguf`; returns the file's SHA-256. Raises JobError("adapter_invalid")
        or "internal" if the engine has no such adapters.
        """
        shutil.rmtree(out, ignore_errors=True)
        folder, file = out / "adapter", out / "adapter.gguf"
        folder.mkdir(parents=True)
        model.save_pretrained(folder, save_embedding_layers=False)
        describe_to_peft(model, folder)
        (folder / "README.md").unlink(missing_ok=True)
        with converting("The adapter cannot be converted for the engine", "Take another base."):
            write_adapter_gguf(Path(self.spec.converters), Path(self.spec.base.path), folder, file, ADAPTER_TYPE)
        return sha256_of(file)
