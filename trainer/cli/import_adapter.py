"""Imports an adapter that was trained elsewhere: `python -m trainer.cli.import_adapter RUN_FOLDER`.

Trains nothing; converts the adapter and writes its effect on fixed rows. `spec.json`: ImportSpec of
trainer/runtime/spec.py.
"""

from pathlib import Path

from trainer.cli.train import run_job
from trainer.runtime.errors import JobError
from trainer.runtime.process import importing
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import ImportSpec, read_import_spec


def import_adapter(spec: ImportSpec, folder: Path, protocol: Protocol) -> bool:
    with importing():
        import torch
        from transformers import AutoConfig

        from trainer.data.questions import general_examples
        from trainer.model import gpu
        from trainer.model.load import (
            device_and_dtype,
            load_base,
            load_tokenizer,
            trainable,
            with_adapter,
            zero_adapter,
        )
        from trainer.run import memory, probe
        from trainer.run.artifact import save

    torch.set_num_threads(spec.threads)
    device, dtype = device_and_dtype()
    gpu.select_device(device)
    tokenizer = load_tokenizer(spec)
    config = AutoConfig.from_pretrained(spec.base.path, local_files_only=True, trust_remote_code=False)
    predicted = memory.predicted_bytes(memory.shape_of(config), spec, dtype.itemsize, 512, 512, device)
    memory.require_fits(predicted, memory.available_bytes(device))
    model = with_adapter(load_base(spec, device, dtype), spec)
    if not all(bool(parameter.isfinite().all()) for parameter in trainable(model).values()):
        raise JobError("adapter_invalid", "The adapter has weights that are not numbers (NaN or infinite).")
    examples = general_examples(tokenizer, config.get_text_config().max_position_embeddings)
    out = folder / "out"
    artifact = save(model, tokenizer, spec, out)
    tuned = probe.log_probabilities(model, examples, device)
    zero_adapter(model)
    path = probe.write(out / "probe.json", examples, tuned, probe.log_probabilities(model, examples, device))
    protocol.emit("result", "Adapter imported", **artifact.as_data(), step=0, validation_loss=None, probe=str(path))
    return True


if __name__ == "__main__":
    run_job(import_adapter, read_import_spec)
