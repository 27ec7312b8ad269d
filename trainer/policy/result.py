"""Saves the result of a policy trainer, as any training's: PEFT's folder, the engine's file and the probe."""

from pathlib import Path
from typing import Any

from trainer.data.questions import general_examples
from trainer.data.tokenizer_identity import identity_of
from trainer.data.trained_with import Common
from trainer.model.load import zero_adapter
from trainer.policy.workspace import Workspace
from trainer.run import probe
from trainer.run.artifact import convert, write_folder


def save_result(workspace: Workspace, name: str, out: Path, common: Common) -> dict[str, Any]:
    """Writes the adapter with its tokenizer into `out`, and log-probabilities of general questions with and without it.
    Returns the artifact's fields. The adapter on the base is lost. Raises JobError("adapter_invalid").
    """
    workspace.activate(name)
    model, tokenizer, spec = workspace.loaded(), workspace.tokenizer, workspace.spec
    write_folder(model, tokenizer, spec, out)
    artifact = convert(tokenizer, spec, out)
    # The trainer's own rendering of questions: an engine with another template is found out.
    examples = general_examples(tokenizer, workspace.text_config.max_position_embeddings)
    tuned = probe.log_probabilities(model, examples, workspace.device)
    zero_adapter(model)
    workspace.drop(name)
    base = probe.log_probabilities(model, examples, workspace.device)
    written = probe.write(out / "probe.json", examples, tuned, base)
    return {
        **artifact.as_data(),
        "probe": str(written),
        "trained_with": {
            **common.as_data(tokenizer),
            "chat_template_sha256": identity_of(tokenizer, Path(spec.base.path)).chat_template_sha256,
        },
    }
