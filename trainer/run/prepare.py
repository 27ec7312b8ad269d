"""Prepares a run up to its first step: the data, the memory check, the model, the loop."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.runtime.errors import JobError
from trainer.runtime.process import importing
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer
    from trainer.run.loop import Loop


def prepare_run(spec: Spec, folder: Path, protocol: Protocol) -> "tuple[Loop, Tokenizer, float]":
    """Returns the loop, restored from its checkpoint if there is one, its tokenizer, and the predicted peak memory in
    bytes. Raises JobError("dataset_invalid") for rows that cannot be learned from, "base_missing" and others for what
    is missing, and "out_of_memory" for a run that does not fit.
    """
    protocol.emit("status", "Preparing the data", phase="preparing")
    # These imports take seconds; the line above should not wait for them.
    with importing():
        import torch
        from transformers.utils.logging import disable_progress_bar

        from trainer.data.dataset import prepare_splits
        from trainer.data.rows import read_rows
        from trainer.data.tokenizer_identity import require_unchanged
        from trainer.model import gpu, projector, sharded
        from trainer.model.load import device_and_dtype, load_config, load_model, load_tokenizer
        from trainer.run import checkpoint, memory
        from trainer.run.loop import Loop, limits_of
        from trainer.runtime.distributed import Distributed

    disable_progress_bar()
    torch.set_num_threads(spec.threads)
    device, dtype = device_and_dtype()
    gpu.select_device(device)
    distributed = Distributed(spec.sharded)
    distributed.init_process_group(device)
    distributed.watch(protocol)
    ranks = distributed.world if distributed.sharded else 1
    # A process alone has all weights; on the CPU, layers that gather their weights compute in float32.
    spec = replace(spec, sharded=distributed.sharded)
    dtype = checkpoint.precision_of(spec) or (torch.float32 if spec.sharded and device.type == "cpu" else dtype)
    tokenizer = load_tokenizer(spec)
    require_unchanged(tokenizer, spec)
    config = load_config(spec)
    if spec.projector:
        projector.require_trainable(config)
    rows = read_rows(Path(spec.dataset.path), spec.dataset.sha256, spec.options.objective)
    max_length = min(spec.training.max_length, config.get_text_config().max_position_embeddings)
    data, held_out = prepare_splits(spec, rows, tokenizer, max_length, protocol)
    if held_out and not spec.evaluation.dataset:
        numbers = [row.number for row in held_out.rows]
        protocol.emit("held_out", f"{len(numbers)} rows are held out", rows=numbers)

    if spec.projector and not (tokenizer.sight and tokenizer.sight.pictures):
        raise JobError(
            "dataset_invalid",
            "target_modules names the projector, and no row of the dataset has a picture. Leave it out, or train on "
            "rows with pictures.",
        )
    if spec.sharded:
        sharded.require_shareable(spec, bool(tokenizer.sight and tokenizer.sight.pictures))
    tokens, targets, passes = memory.largest_pack(data, spec, limits_of(config, spec, device), device)
    encoding = memory.encoding_bytes(tokenizer.sight, 4 if spec.method == "full" else dtype.itemsize)
    shape = memory.shape_of(config)
    predicted = memory.predicted_bytes(shape, spec, dtype.itemsize, tokens, targets, device, encoding, passes, ranks)
    # Processes on the CPU share its memory; each GPU has its own.
    memory.require_fits(predicted, memory.available_bytes(device) // (distributed.world if device.type == "cpu" else 1))

    protocol.emit("status", f"Loading {spec.base.id}", phase="loading")
    model = load_model(spec, device, dtype)
    loop = Loop(spec, model, tokenizer, data, held_out, folder, device, protocol, distributed, predicted)
    protocol.emit(
        "log",
        f"{len(data.rows)} rows with {data.tokens} tokens, {data.targets} of them learned, in {loop.steps_total} steps",
        rows=len(data.rows),
        tokens=data.tokens,
        trained_tokens_per_epoch=data.targets,
        steps_total=loop.steps_total,
        truncated_rows=data.truncated_rows,
        dropped_rows=data.dropped_rows,
        seed=spec.training.seed,
        threads=spec.threads,
        trainable_parameters=sum(parameter.numel() for parameter in loop.parameters.values()),
        device=device.type,
        processes=distributed.world,
        sharded=distributed.sharded,
        dtype=str(dtype).removeprefix("torch."),
        predicted_memory_mb=round(predicted / 1e6),
        packed=loop.limits.documents is None,
    )
    return loop, tokenizer, predicted
