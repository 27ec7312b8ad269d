"""Computes in float32 with weights stored as narrow as in the checkpoint: half the memory, the same results."""

from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear

from trainer.model.model import Model, replace_forward

# Weights widened at once.
CHUNK_WEIGHTS = 1 << 22


def compute_in_float32(model: Model) -> None:
    """Linear layers and embeddings (nearly all of a model) widen their weights on use; everything else is widened for
    good.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            if module.weight.dtype != torch.float32:
                replace_forward(module, partial(_linear, module))
        elif type(module) is nn.Embedding:
            if module.weight.dtype != torch.float32:
                module.register_forward_hook(lambda _module, _ids, vectors: vectors.float())
        else:
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point():
                    parameter.data = parameter.data.float()
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.float())


def _linear(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    step = max(1, CHUNK_WEIGHTS // module.in_features)
    results = [linear(x, rows.to(x.dtype)) for rows in torch.split(module.weight, step)]
    result = results[0] if len(results) == 1 else torch.cat(results, dim=-1)
    bias = cast(torch.Tensor | None, module.bias)
    return result if bias is None else result + bias.to(x.dtype)
