# pyright: basic
# torch leaves the types of its collective operations open.
"""A base whose weights several devices share: each has a part of every decoder layer, and gathers a layer's other parts
while it computes that layer (FSDP2: Zhao et al., arXiv 2304.11277, by torch's `fully_shard`).

What is trained, embeddings, norms and the head are whole on each device. So gradients, optimizer and checkpoints are
those of processes that have all weights each. A layer's activations are computed again for its backward pass: without
that they, not the weights, would need the most memory.
"""

from typing import Any, cast

import torch

from trainer.model.model import Model, base_of, decoder_of
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Spec


def require_shareable(spec: Spec, sees: bool) -> None:
    """Raises JobError("not_supported") for a run whose weights several devices cannot share."""
    problems = {
        f"the method {spec.method}": spec.method != "lora",
        f"the objective {spec.options.objective}": spec.options.objective != "sft",
        "adapters of experts": spec.lora is not None and spec.lora.experts,
        "rows with pictures": sees,
        "a result that is merged into its base": spec.merge,
    }
    for what, applies in problems.items():
        if applies:
            raise JobError(
                "not_supported",
                f"{what[0].upper()}{what[1:]} cannot be trained with weights that several devices share: only lora on "
                "answers can. Take a base that fits one device, or lora.",
            )


def layers_of(base: Model) -> list[torch.nn.Module]:
    """The decoder layers. Raises JobError("not_supported") where a family has them under another name."""
    layers = getattr(decoder_of(base), "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise JobError("not_supported", "The layers of this family of models cannot be shared by several devices.")
    return list(layers)


def shard(model: Model, device: torch.device) -> None:
    """Spreads the frozen weights of the decoder layers of a model on the CPU over all processes, and moves the rest to
    the device.
    """
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module, base = cast(torch.nn.Module, model), base_of(model)
    layers = layers_of(base)
    # Classes of scans.py and position_mixers.py, made for the device that the base was loaded on.
    if device.type != "cpu" and any(type(part).__module__.startswith("trainer.") for part in module.modules()):
        raise JobError(
            "not_supported",
            "Layers of this family mix positions outside of attention: several GPUs cannot share them. Take a base "
            "that fits one GPU.",
        )
    shared = {id(weight) for layer in layers for weight in layer.parameters() if not weight.requires_grad}
    whole = {weight for weight in module.parameters() if id(weight) not in shared}
    for weight in whole:
        weight.data = weight.data.to(device)
    _compute_again(base)
    mesh = init_device_mesh(device.type, (get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=whole, reshard_after_forward=True)
    # The root: it gathers nothing itself, and makes the layers gather ahead.
    fully_shard(module, mesh=mesh, ignored_params=set(module.parameters()))


def _compute_again(base: Any) -> None:
    """Makes layers keep their inputs alone for the backward pass, in the families that can."""
    if getattr(base, "supports_gradient_checkpointing", False):
        base.activation_checkpointing_enable({"use_reentrant": False})
