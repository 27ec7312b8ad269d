"""The commands of a policy trainer: what each reads, and what it answers. `trainer/cli/commands.py` runs them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.data.trained_with import Common
from trainer.policy.data import Datum, read_data
from trainer.policy.losses import LOSSES
from trainer.policy.result import save_result
from trainer.policy.workspace import LossOptions, Workspace
from trainer.run.memory import peak_bytes, trim_heap
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Lora, ModelSpec, Start, typed

Fields = dict[str, Any]
# Heap that may stay after a command, in bytes, beside what the base takes.
KEPT_HEAP = 3_000_000_000


class Commands:
    """Each command names its `adapter` and answers with fields of JSON. Paths are this machine's, from the service.

    create {adapter, lora?, start?, seed?}: {parameters}
    drop {adapter}: {}
    forward {adapter, data, base?}: {log_probabilities}, with `base` those without the adapter
    forward_backward {adapter, data, loss?, low?, high?, truncation?}: {loss, log_probabilities, clipped_share,
        correction}
    optim_step {adapter, learning_rate, max_grad_norm?, betas?, eps?, weight_decay?}: {grad_norm}
    save_state {adapter, path, fields?}: {sha256, size_mb}
    load_state {adapter, path, sha256?, optimizer?}: {fields}, null if the files are missing or damaged
    save_weights {adapter, path}: {gguf, sha256}
    remove {path}: {}
    save_result {adapter, path, prompts?}: an artifact's fields, with `trained_with`, `peak_memory_mb` and
        `predicted_memory_mb`

    `data` is a list (trainer/policy/data.py), or the path of a JSON file that has it as `data`.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.workspace = Workspace(spec)
        text = self.workspace.text_config
        self.vocabulary, self.longest = text.vocab_size, text.max_position_embeddings
        self.known: dict[str, Callable[[Fields], Fields]] = {
            "create": self._create,
            "drop": self._drop,
            "forward": self._forward,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_state": self._save_state,
            "load_state": self._load_state,
            "save_weights": self._save_weights,
            "remove": self._remove,
            "save_result": self._save_result,
        }

    def run(self, command: str, fields: Fields) -> Fields:
        """Runs one command. Raises JobError, "internal" for an unknown command or a field that is missing."""
        if command not in self.known:
            raise JobError("internal", f"There is no command '{command}'. There are {', '.join(self.known)}.")
        try:
            return self.known[command](fields)
        except KeyError as missing:
            raise JobError("internal", f"The command '{command}' lacks {missing}.") from missing
        finally:
            trim_heap(KEPT_HEAP, self.workspace.device)

    def _create(self, fields: Fields) -> Fields:
        lora, start = fields.get("lora"), fields.get("start")
        created = self.workspace.create(
            fields["adapter"], lora and typed(Lora, lora), start and typed(Start, start), fields.get("seed", 42)
        )
        return {"parameters": created}

    def _drop(self, fields: Fields) -> Fields:
        self.workspace.drop(fields["adapter"])
        return {}

    def _data(self, fields: Fields) -> list[Datum]:
        given = fields["data"]
        values = json.loads(Path(given).read_text())["data"] if isinstance(given, str) else given
        return read_data(values, self.vocabulary, self.longest)

    def _forward(self, fields: Fields) -> Fields:
        data, base = self._data(fields), bool(fields.get("base", False))
        return {"log_probabilities": self.workspace.forward(fields["adapter"], data, base)}

    def _forward_backward(self, fields: Fields) -> Fields:
        names = ("name", "low", "high", "truncation")
        given = {**fields, "name": fields.get("loss", "ppo")}
        if given["name"] not in LOSSES:
            raise JobError("internal", f"There is no loss '{given['name']}'. There are {', '.join(LOSSES)}.")
        options = LossOptions(**{name: given[name] for name in names if given.get(name) is not None})
        return self.workspace.forward_backward(fields["adapter"], self._data(fields), options)

    def _optim_step(self, fields: Fields) -> Fields:
        names = ("max_grad_norm", "betas", "eps", "weight_decay")
        options = {name: fields[name] for name in names if fields.get(name) is not None}
        return {"grad_norm": self.workspace.optim_step(fields["adapter"], fields["learning_rate"], **options)}

    def _save_state(self, fields: Fields) -> Fields:
        sha256, size_mb = self.workspace.save_state(fields["adapter"], Path(fields["path"]), fields.get("fields", {}))
        return {"sha256": sha256, "size_mb": size_mb}

    def _load_state(self, fields: Fields) -> Fields:
        path, sha256, optimizer = Path(fields["path"]), fields.get("sha256"), fields.get("optimizer", True)
        return {"fields": self.workspace.load_state(fields["adapter"], path, sha256, optimizer)}

    def _save_weights(self, fields: Fields) -> Fields:
        out = Path(fields["path"])
        sha256 = self.workspace.save_weights(fields["adapter"], out)
        return {"gguf": str(out / "adapter.gguf"), "sha256": sha256}

    def _remove(self, fields: Fields) -> Fields:
        shutil.rmtree(Path(fields["path"]), ignore_errors=True)
        return {}

    def _save_result(self, fields: Fields) -> Fields:
        common = Common()
        for prompt in fields.get("prompts", []):
            common.add(prompt)
        saved = save_result(self.workspace, fields["adapter"], Path(fields["path"]), common)
        peak, predicted = peak_bytes(self.workspace.device), self.workspace.predicted
        return {**saved, "peak_memory_mb": round(peak / 1e6), "predicted_memory_mb": round(predicted / 1e6)}
