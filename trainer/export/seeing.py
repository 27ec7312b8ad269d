"""Prompts with pictures, for the reference answers of exports and their checks."""

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from trainer.data.content import pictures_of
from trainer.data.control_text import control_text
from trainer.data.dataset import Sequence, with_pictures
from trainer.data.loss_mask import rendering
from trainer.data.pictures import decode, files_in, take_out
from trainer.data.sight import Sight, sight_of
from trainer.data.tokenizer import Tokenizer
from trainer.model.load import class_for
from trainer.model.model import Model, base_of
from trainer.model.vision import encoded, image_processor


def load(folder: Path, dtype: str | None = None) -> Model:
    """The checkpoint in a folder, in the class of transformers that a user would take."""
    from transformers import AutoConfig

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    kind = class_for(AutoConfig.from_pretrained(folder, **options))
    if dtype:
        options["dtype"] = dtype
    return cast(Model, kind.from_pretrained(folder, use_safetensors=True, **options))


def with_adapter(model: Model, folder: Path) -> Model:
    """The model with the adapter in a folder of PEFT."""
    from peft import PeftModel

    peft: Any = PeftModel
    return peft.from_pretrained(model, folder)


def eyes_of(model: Model, tokenizer: Tokenizer, folder: Path) -> "Eyes | None":
    """Those of a model whose processor is in `folder`; None if it reads text alone. Gives the tokenizer its sight."""
    tokenizer.sight = sight_of(base_of(model).config, folder, tokenizer)
    return Eyes(model, tokenizer, tokenizer.sight, folder) if tokenizer.sight else None


class Eyes:
    """Shows the pictures of prompts to a model. Its attribute `features`, from which `inputs_of` takes vectors."""

    unprojected = False

    def __init__(self, model: Model, tokenizer: Tokenizer, sight: Sight, folder: Path) -> None:
        self.base, self.tokenizer, self.sight = base_of(model), tokenizer, sight
        self.processor = image_processor(self.sight, folder)
        self.vectors: list[torch.Tensor] = []
        model.features = self

    def rows(self, vectors: torch.Tensor) -> torch.Tensor:
        """The vectors with these numbers, int64 [n]: [n, width]."""
        return torch.cat(self.vectors).index_select(0, vectors)

    def prompt(self, messages: list[dict[str, Any]]) -> Sequence:
        """A conversation with pictures as data URLs, up to the start of its answer. Raises
        JobError("dataset_invalid").
        """
        messages = copy.deepcopy(messages)
        files = files_in(messages)
        take_out(messages, None)
        pictures = tuple(pictures_of(messages))
        ((ids, _, _),) = control_text(self.tokenizer).encode([rendering(messages, self.tokenizer, open_turn=True)])
        text = Sequence(np.array(ids, dtype=np.int32), np.zeros(len(ids), dtype=bool))
        encoded_pictures = set(self.sight.pictures)
        shown = with_pictures(text, pictures, self.sight) if pictures else text
        for picture, file in zip(pictures, files, strict=True):
            if picture.sha256 not in encoded_pictures:
                encoded_pictures.add(picture.sha256)
                vectors = encoded(self.base, self.sight, self.processor, decode(file), torch.device("cpu"))
                self.vectors.append(vectors.float())
        return shown
