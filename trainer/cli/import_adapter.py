"""Imports an adapter that was trained elsewhere: `python -m trainer.cli.import_adapter RUN_FOLDER`.

Trains nothing. Converts the adapter, or the model that it becomes with its base, and writes its effect on fixed rows
as PEFT computes it. `spec.json`: ImportSpec of trainer/runtime/spec.py.
"""

import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cli.train import run_job
from trainer.runtime.errors import JobError
from trainer.runtime.process import importing
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Base, ImportSpec, Start, read_import_spec

if TYPE_CHECKING:
    import torch

    from trainer.data.dataset import Example
    from trainer.data.tokenizer import Tokenizer
    from trainer.run.artifact import Artifact

# The log-probabilities of the examples' learned tokens, row by row.
Scores = list[list[float]]


def import_adapter(spec: ImportSpec, folder: Path, protocol: Protocol) -> bool:
    """Converts the adapter into `folder/out`. Raises JobError("adapter_invalid") if it cannot be kept exactly."""
    with importing():
        import torch
        from transformers import AutoConfig

        from trainer.data.questions import general_examples
        from trainer.model import gpu
        from trainer.model.load import device_and_dtype, load_tokenizer
        from trainer.run import foreign_adapter, memory, probe

    torch.set_num_threads(spec.threads)
    device, dtype = device_and_dtype()
    gpu.select_device(device)
    tokenizer = load_tokenizer(spec)
    config = AutoConfig.from_pretrained(spec.base.path, local_files_only=True, trust_remote_code=False)
    plain = foreign_adapter.is_plain(Path(spec.start.path), spec.linear_modules)
    if not plain:
        # The result is compared with PEFT's reading.
        dtype = torch.float32
    predicted = memory.predicted_bytes(memory.shape_of(config), spec, dtype.itemsize, 512, 512, device)
    memory.require_fits(predicted, memory.available_bytes(device))
    examples = general_examples(tokenizer, config.get_text_config().max_position_embeddings)
    out = folder / "out"
    work = import_plain if plain else import_reading
    artifact, tuned, origin = work(spec, tokenizer, examples, device, dtype, out)
    path = probe.write(out / "probe.json", examples, tuned, origin)
    protocol.emit("result", "Adapter imported", **artifact.as_data(), step=0, validation_loss=None, probe=str(path))
    return True


def import_plain(
    spec: ImportSpec,
    tokenizer: "Tokenizer",
    examples: "list[Example]",
    device: "torch.device",
    dtype: "torch.dtype",
    out: Path,
) -> "tuple[Artifact, Scores, Scores]":
    """Writes a plain adapter. Returns the artifact, and the log-probabilities with the adapter and without it. Raises
    JobError("adapter_invalid") if a weight is not finite.
    """
    from trainer.model.load import load_base, trainable, with_adapter, zero_adapter
    from trainer.run import probe
    from trainer.run.artifact import save

    model = with_adapter(load_base(spec, device, dtype), spec)
    if not all(bool(parameter.isfinite().all()) for parameter in trainable(model).values()):
        raise JobError("adapter_invalid", "The adapter has weights that are not numbers (NaN or infinite).")
    artifact = save(model, tokenizer, spec, out)
    tuned = probe.log_probabilities(model, examples, device)
    zero_adapter(model)
    return artifact, tuned, probe.log_probabilities(model, examples, device)


def import_reading(
    spec: ImportSpec,
    tokenizer: "Tokenizer",
    examples: "list[Example]",
    device: "torch.device",
    dtype: "torch.dtype",
    out: Path,
) -> "tuple[Artifact, Scores, Scores]":
    """Writes an adapter that is not plain as what PEFT reads in it: a plain one where that is exact, else the whole
    model. Returns the artifact, and the log-probabilities of PEFT's reading and of the base. Raises
    JobError("adapter_invalid") if two readings differ.
    """
    from trainer.model.load import load_base
    from trainer.run import foreign_adapter, probe
    from trainer.run.artifact import save

    folder = Path(spec.start.path)
    base = load_base(spec, device, dtype)
    origin = probe.log_probabilities(base, examples, device)
    reading = foreign_adapter.read(base, folder)
    if foreign_adapter.is_random(folder) and not foreign_adapter.is_repeatable(
        reading, foreign_adapter.read(load_base(spec, device, dtype), folder, seed=1)
    ):
        raise JobError(
            "adapter_invalid", f"The adapter's beginning depends on random numbers. {foreign_adapter.CONVERT}"
        )
    tuned = probe.log_probabilities(reading.model, examples, device)
    pairs = reading.pairs(spec.linear_modules, spec.experts)
    if pairs is None:
        whole = replace(spec, method="full")
        model = foreign_adapter.merge(reading)
        artifact = save(model, tokenizer, whole, out)
        del model, reading, base
        gc.collect()
        saved = load_base(replace(whole, base=Base(spec.base.id, str(artifact.folder))), device, dtype)
        foreign_adapter.require_equal(tuned, probe.log_probabilities(saved, examples, device))
        return artifact, tuned, origin
    del reading, base
    gc.collect()
    plain = out.parent / "plain"
    lora, sha256 = foreign_adapter.write_plain(pairs, foreign_adapter.read_config(folder), plain)
    start = Start(str(plain), sha256)
    artifact, computed, _ = import_plain(replace(spec, lora=lora, start=start), tokenizer, examples, device, dtype, out)
    foreign_adapter.require_equal(tuned, computed)
    return artifact, tuned, origin


if __name__ == "__main__":
    run_job(import_adapter, read_import_spec)
