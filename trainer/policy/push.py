"""Writes the adapters of a loaded base for the engine, one after each step."""

import shutil
from pathlib import Path
from typing import Any

from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file

from trainer.model.adapter_file import pairs_of, read_config
from trainer.model.adapter_gguf import AdapterWriter
from trainer.model.experts import describe_to_peft
from trainer.model.model import Model
from trainer.model.skeleton import Skeleton
from trainer.run.convert_to_gguf import ADAPTER_TYPE
from trainer.runtime.errors import converting
from trainer.runtime.spec import ModelSpec


class Pusher:
    """Converts the adapters of `model`, without the tokenizer and the description that a result has beside them. The
    first takes longest: what is read of the base, and PEFT's configuration, serve for all.
    """

    def __init__(self, spec: ModelSpec, model: Model) -> None:
        self.model, self.base = model, Path(spec.base.path)
        self.writer = AdapterWriter(Path(spec.converters), self.base, ADAPTER_TYPE)
        self.skeleton: Skeleton | None = None
        self.config: dict[str, Any] = {}
        self.config_file = b""

    def write(self, out: Path) -> str:
        """Writes `out/adapter/` and `out/adapter.gguf`; returns the file's SHA-256. Raises JobError("adapter_invalid")
        or "internal" if the engine has no such adapters.
        """
        shutil.rmtree(out, ignore_errors=True)
        folder = out / "adapter"
        folder.mkdir(parents=True)
        if not self.config_file:
            self._describe(folder)
        (folder / "adapter_config.json").write_bytes(self.config_file)
        stored = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(stored.items())}
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
        with converting("The adapter cannot be converted for the engine", "Take another base."):
            self.skeleton = self.skeleton or Skeleton(self.base)
            pairs = pairs_of(self.config, tensors, self.skeleton.model)
            return self.writer.write(self.config, pairs, out / "adapter.gguf", self.skeleton)

    def _describe(self, folder: Path) -> None:
        """PEFT completes its configuration only as it writes it."""
        self.model.save_pretrained(folder, save_embedding_layers=False)
        describe_to_peft(self.model, folder)
        (folder / "README.md").unlink(missing_ok=True)
        self.config, self.config_file = read_config(folder), (folder / "adapter_config.json").read_bytes()
