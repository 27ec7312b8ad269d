"""Importance matrix: the mean square of each input of a matrix, over tokens that the model was trained on.

It is llama.cpp's importance matrix (its tools/imatrix): quantization keeps the weights with large inputs more exact,
and the types with the fewest bits require it. Measured once for each model and stored with its reference answers:
safetensors with one float32 vector [inputs] for each matrix, by the checkpoint's names.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.data.loss_mask import token_ids
from trainer.data.rows import example_of
from trainer.data.tokenizer import Tokenizer
from trainer.export.spec import Export
from trainer.model.model import Model
from trainer.runtime.errors import JobError
from trainer.runtime.files import atomic_write
from trainer.runtime.protocol import Report

# Enough for means over thousands of inputs to settle; takes a minute for a model of a billion weights on two cores.
MAX_TOKENS, MAX_ROW_TOKENS = 4096, 512
# Samples rows all over the file, as it may be sorted.
SAMPLE_POSITIONS = 256
# Skips the head, as llama.cpp does: if it shares its weights with the embeddings, it has a second use.
LAYER = re.compile(r"\.\d+\.")
WRAPPED = re.compile(r"^base_model\.model\.|\.base_layer$|\.modules_to_save\.\w+$")
# Names in models that see: the converter knows those of a language model by itself.
LANGUAGE_PART = re.compile(r"^model\.(text_model|language_model)\.")


def measure(
    spec: Export, model: Model, tokenizer: Tokenizer, fallback: list[list[dict[str, Any]]], report: Report
) -> None:
    """Writes `spec.importance`, which is a file's name. Uses the `fallback` conversations if the dataset is gone."""
    assert spec.importance, "only asked for where it is needed"
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}

    def watch(name: str) -> Callable[[torch.nn.Module, tuple[Any, ...]], None]:
        def add_squares(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            squares = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float().square()
            sums[name] = sums[name] + squares.sum(0) if name in sums else squares.sum(0)
            counts[name] = counts.get(name, 0) + len(squares)

        return add_squares

    hooks = [
        module.register_forward_pre_hook(watch(_own_name(name)))
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D")
        and LAYER.search(name)
        and "lora_" not in name
        and "original_module" not in name
    ]
    done = 0
    try:
        for conversation in _conversations(spec, fallback):
            try:
                ids = token_ids(conversation, tokenizer)[: min(MAX_ROW_TOKENS, MAX_TOKENS - done)]
            except JobError:
                # A model trained before control tokens in rows were text may have learned a row that is refused now.
                continue
            if len(ids) < 2:
                continue
            with torch.inference_mode():
                model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)
            done += len(ids)
            report(done / MAX_TOKENS)
            if done >= MAX_TOKENS - 1:
                break
    finally:
        for hook in hooks:
            hook.remove()
    means = {name: (total / counts[name]).contiguous() for name, total in sums.items()}
    with atomic_write(Path(spec.importance)) as temporary:
        save_file(means, temporary)


def for_file(importance: Path, gguf_file: Path, out: Path) -> None:
    """Writes the vectors under the names of a GGUF file's matrices; skips matrices that the file lacks."""
    import gguf

    from trainer.runtime.gguf_reader import GgufReader

    reader = GgufReader(gguf_file)
    architecture = reader.fields["general.architecture"].contents()
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, int(reader.fields[f"{architecture}.block_count"].contents()))
    matrices = {tensor.name: int(tensor.shape[0]) for tensor in reader.tensors if len(tensor.shape) == 2}
    named: dict[str, torch.Tensor] = {}
    for name, values in load_file(importance).items():
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if gguf_name and matrices.get(gguf_name) == len(values):
            named[gguf_name] = values
    save_file(named, out)


def _own_name(name: str) -> str:
    """The checkpoint's name of a module that PEFT may have wrapped, as in a language model by itself."""
    return f"{LANGUAGE_PART.sub('model.', WRAPPED.sub('', name))}.weight"


def _conversations(spec: Export, fallback: list[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    rows = 0
    try:
        with open(spec.rows or os.devnull, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            last = -1
            for position in range(SAMPLE_POSITIONS):
                file.seek(size * position // SAMPLE_POSITIONS)
                if position:
                    file.readline()
                if (at := file.tell()) == last:
                    continue
                last = at
                if line := file.readline():
                    rows += 1
                    yield example_of(line)
    except OSError:
        pass
    if not rows:
        yield from fallback
