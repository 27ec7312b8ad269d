"""What training on an NVIDIA GPU needs of torch, beyond naming the device."""

import torch

from trainer.model.fast_layers import FAMILY


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)


def make_exact(model: torch.nn.Module, device: torch.device) -> None:
    """Has kernels add up in a fixed order: a run that goes on from a checkpoint ends as one that was never interrupted,
    to the bit.

    Of families that we know. In others it is not known that every operation has such a kernel, and one that has none
    would be an error.
    """
    if device.type == "cuda":
        layers = {type(module).__name__ for module in model.modules() if type(module).__name__.endswith("DecoderLayer")}
        torch.use_deterministic_algorithms(True, warn_only=not layers or not layers <= FAMILY)
        # Would fill every new tensor, to show who reads what was never written.
        torch.utils.deterministic.fill_uninitialized_memory = False


def in_bf16(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Has a GPU compute in bf16 with weights that stay float32 (Micikevicius et al., "Mixed Precision Training",
    arXiv 1710.03740).
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)
    return model
