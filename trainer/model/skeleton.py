"""A checkpoint's model without its weights: which layers it has, and how its files keep them."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from trainer.data.sight import is_vision
from trainer.model.model import Model


class Skeleton:
    """The model of the checkpoint in `folder` as transformers loads it for a training, on torch's meta device: only its
    configuration and the headers of its files are read.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # The names of a quantized checkpoint's tensors are those of its parts.
        for part in (config, config.get_text_config()):
            vars(part).pop("quantization_config", None)
        wraps = is_vision(config) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        with torch.device("meta"):
            empty: Any = (AutoModelForImageTextToText if wraps else AutoModelForCausalLM).from_config(config)
        tensors = _tensors(folder)
        self.files = {name: file for name, (file, _) in tensors.items()}
        self.shapes = {name: shape for name, (_, shape) in tensors.items()}
        stored = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        options: dict[str, Any] = {"config": empty.config, "state_dict": stored, "device_map": {"": "meta"}}
        # Loading tells transformers which of its conversions the names of the files need.
        loaded: Any = type(empty).from_pretrained(
            None, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
        self.loaded: Any = loaded[0]
        # The names of weights that no file has, and of those that have another shape there: stored and needed.
        self.missing: set[str] = set(loaded[1]["missing_keys"])
        self.mismatched: list[tuple[str, torch.Size, torch.Size]] = sorted(loaded[1]["mismatched_keys"])

    @property
    def model(self) -> Model:
        """Its modules have no data."""
        return self.loaded

    def as_stored(self, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """A weight by the model's name, as the checkpoint's files keep it: maybe under another name, transposed, or as
        a tensor [outputs, inputs] for each expert, which are one weight in memory.
        """
        from transformers.core_model_loading import revert_weight_conversion

        reverted = revert_weight_conversion(self.loaded, {name: weight})
        if not reverted.keys() <= self.shapes.keys():
            # The language model alone, of a checkpoint that has it as a part of this name: Llama 4.
            part = f"{self.loaded.base_model_prefix}."
            reverted = {part + stored: each for stored, each in reverted.items()}
        if not reverted.keys() <= self.shapes.keys():
            return {name: weight}
        return {stored: self._turned(stored, part) for stored, part in reverted.items()}

    def stored_name(self, name: str) -> str:
        """The name in the files of a weight that is a tensor there, or the name itself."""
        if name in self.shapes:
            return name
        names = list(self.as_stored(name, torch.empty(0, 0, device="meta")))
        return names[0] if len(names) == 1 else name

    def read(self, stored: str) -> torch.Tensor:
        """A tensor of the files, in its stored shape and type."""
        with safe_open(self.files[stored], "pt") as opened:
            return opened.get_tensor(stored)

    def _turned(self, stored: str, part: torch.Tensor) -> torch.Tensor:
        """Transformers transposes some experts on loading, where their shape says so, and not on saving."""
        shape = self.shapes[stored]
        return part if part.shape == shape or part.mT.shape != shape else part.mT


def _tensors(folder: Path) -> dict[str, tuple[Path, torch.Size]]:
    """The files and shapes of a checkpoint's tensors."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no dict: it cannot be iterated)
                tensors[name] = file, torch.Size(opened.get_slice(name).get_shape())
    return tensors
