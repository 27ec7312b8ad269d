"""A projector that is trained: the layers of a vision base between its frozen tower and the language model.

What the tower makes of a picture does not change and is kept (trainer/model/vision.py). Each step computes the
projector from there, with gradients. Its weights are float32 and trained whole; peft saves them with an adapter
(`modules_to_save`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from peft.utils import ModulesToSaveWrapper

from trainer.model.model import Model, replace_forward, restore_forward
from trainer.runtime.errors import JobError

# The projector's module below the model, by the model type of the base. Qwen3-VL's also reads states of layers in
# between, which are not kept.
PATHS = {
    "idefics3": "connector",
    "smolvlm": "connector",
    "qwen2_vl": "visual.merger",
    "qwen2_5_vl": "visual.merger",
}


def require_trainable(config: Any) -> None:
    """Raises JobError("parameter_not_supported") if the projector of a base with this configuration is not trained."""
    if config.model_type not in PATHS:
        raise JobError(
            "parameter_not_supported",
            f"target_modules names the projector, which can be trained for {', '.join(sorted(PATHS))}, and this base "
            f"is {config.model_type}. Leave it out.",
        )


def path_of(base: Model) -> str:
    """The name of the projector's module in a base of transformers."""
    return f"model.{PATHS[base.config.model_type]}"


def module_of(base: Model) -> torch.nn.Module:
    """The projector in force: of the adapter if it has one."""
    module = base.get_submodule(path_of(base))
    if isinstance(module, ModulesToSaveWrapper):
        return cast(torch.nn.ModuleDict, module.modules_to_save)[module.active_adapters[0]]
    return module


def weights_of(base: Model) -> dict[str, torch.Tensor]:
    """The projector's weights in force, in their stored shapes, under the ends of their names in a checkpoint."""
    weights = module_of(base).state_dict()
    return {f"{PATHS[base.config.model_type]}.{name}": value for name, value in weights.items()}


@torch.no_grad()
def restore(base: Model) -> None:
    """Gives an adapter's projector the weights of the base's."""
    wrapper = base.get_submodule(path_of(base))
    if isinstance(wrapper, ModulesToSaveWrapper):
        for name, value in wrapper.original_module.state_dict().items():
            module_of(base).state_dict()[name].copy_(value)


def row_width(config: Any) -> int:
    """Numbers that a base's projector reads for each vector."""
    vision = config.vision_config
    if hasattr(config, "scale_factor"):
        return vision.hidden_size * config.scale_factor**2
    return (getattr(vision, "embed_dim", None) or vision.hidden_size) * vision.spatial_merge_size**2


def parameters(config: Any) -> int:
    """Weights of a base's projector."""
    width, out = row_width(config), config.get_text_config().hidden_size
    # Tiled families have one matrix; Qwen's has two.
    return width * out if hasattr(config, "scale_factor") else width * (width + out + 2) + out


@contextmanager
def left_out(base: Model) -> Iterator[None]:
    """Within it, the base's pictures have what its projector reads in the place of their vectors: [vectors, width]."""
    module: Any = module_of(base)
    shuffle = getattr(module, "pixel_shuffle", None)
    if shuffle:
        replace_forward(module, lambda states: shuffle(states, module.scale_factor))
    else:
        # Consecutive patches are those of one vector.
        replace_forward(module, lambda states: states.reshape(-1, module.hidden_size))
    try:
        yield
    finally:
        restore_forward(module)


def project(base: Model, rows: torch.Tensor) -> torch.Tensor:
    """The vectors [vectors, hidden] of what was kept of pictures [vectors, width], with gradients."""
    module: Any = module_of(base)
    rows = rows.to(next(module.parameters()).dtype)
    if hasattr(module, "pixel_shuffle"):
        return module.modality_projection(rows)
    return module(rows.view(-1, module.ln_q.weight.shape[0]))
