"""How much each input of a matrix weighs: the mean of its square over the tokens of what the model was trained on.

That is llama.cpp's importance matrix (its tools/imatrix): quantizing by it keeps those weights near that are multiplied
most, and the
types of the fewest bits are not made without it. Measured once a model and kept beside its answers: safetensors of one
float32 vector
[inputs] for each matrix, by the checkpoint's names.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from trainer.data.loss_mask import token_ids
from trainer.export.spec import Export
from trainer.runtime.errors import JobError
from trainer.runtime.files import placed

# Enough for means over thousands of inputs to settle; a minute for a model of a billion weights on two cores.
MOST_TOKENS, LONGEST_ROW = 4096, 512
# Rows are taken from places all over the file, as it may be sorted.
PLACES = 256
# The head is left alone, as llama.cpp leaves it: where it is the embeddings too, it has another use that this says
# nothing of.
LAYER = re.compile(r"\.\d+\.")
WRAPPED = re.compile(r"^base_model\.model\.|\.base_layer$|\.modules_to_save\.\w+$")


def measure(spec: Export, model: torch.nn.Module, tokenizer, instead: list[list[dict]], tell) -> None:
    """Writes `spec.importance`. The conversations `instead` stand in for the rows of a dataset that is gone."""
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}

    def watch(name: str):
        def seen(_module, given) -> None:
            squares = given[0].detach().reshape(-1, given[0].shape[-1]).float().square()
            sums[name] = sums.get(name, 0) + squares.sum(0)
            counts[name] = counts.get(name, 0) + len(squares)

        return seen

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
        for conversation in _conversations(spec, instead):
            try:
                ids = token_ids(conversation, tokenizer)[: min(LONGEST_ROW, MOST_TOKENS - done)]
            except JobError:
                # A model of before text of rows was text may have learned a row that is refused now.
                continue
            if len(ids) < 2:
                continue
            with torch.inference_mode():
                model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)
            done += len(ids)
            tell(done / MOST_TOKENS)
            if done >= MOST_TOKENS - 1:
                break
    finally:
        for hook in hooks:
            hook.remove()
    means = {name: (total / counts[name]).contiguous() for name, total in sums.items()}
    with placed(Path(spec.importance)) as aside:
        save_file(means, aside)


def for_file(importance: Path, gguf_file: Path, out: Path) -> None:
    """Writes the vectors by the names that a GGUF file of the checkpoint has for its matrices, without those that it
    has not.
    """
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    architecture = reader.fields["general.architecture"].contents()
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, int(reader.fields[f"{architecture}.block_count"].contents()))
    matrices = {tensor.name: int(tensor.shape[0]) for tensor in reader.tensors if len(tensor.shape) == 2}
    named = {}
    for name, values in load_file(importance).items():
        there = names.get_name(name, try_suffixes=(".weight",))
        if matrices.get(there) == len(values):
            named[there] = values
    save_file(named, out)


def _own_name(name: str) -> str:
    """The checkpoint's own name of a module that PEFT may have wrapped."""
    return f"{WRAPPED.sub('', name)}.weight"


def _conversations(spec: Export, instead: list[list[dict]]) -> Iterator[list[dict]]:
    rows = 0
    try:
        with open(spec.rows or os.devnull, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            last = -1
            for place in range(PLACES):
                file.seek(size * place // PLACES)
                if place:
                    file.readline()
                if (at := file.tell()) == last:
                    continue
                last = at
                if line := file.readline():
                    rows += 1
                    yield json.loads(line)["messages"]
    except OSError:
        pass
    if not rows:
        yield from instead
