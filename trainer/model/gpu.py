"""Settings of torch for an NVIDIA GPU."""

import torch

from trainer.model.fast_layers import FAMILY
from trainer.model.model import Model


def select_device(device: torch.device) -> None:
    """Makes a GPU the one of this process, and begins to measure its peak memory."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)


def make_deterministic(model: Model, device: torch.device, strict: bool = True) -> None:
    """Makes kernels sum in a fixed order: a resumed run then ends with the same bits as one that was never interrupted.

    Only for the families of `fast_layers`. Other models may have operations without a deterministic kernel, which would
    be an error; these get a warning, as all do that are not `strict`.
    """
    if device.type == "cuda":
        layers = {type(module).__name__ for module in model.modules() if type(module).__name__.endswith("DecoderLayer")}
        torch.use_deterministic_algorithms(True, warn_only=not (strict and layers and layers <= FAMILY))
        # Would fill every new tensor to expose reads of uninitialized memory. A property of the module's class.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
