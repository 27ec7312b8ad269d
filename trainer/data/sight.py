"""How a vision base sees pictures: the tokens that stand for one in a prompt, and where its vectors are among them.

As the families' processors in transformers and the engine's library (libmtmd) do it. Imports no torch: tokens are
counted without it.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.pictures import Picture
from trainer.data.tokenizer import Tokenizer
from trainer.runtime.errors import JobError

# What says how pictures are prepared, beside a checkpoint.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
# The engine's library knows no other limits of Qwen's pictures, whatever preprocessor_config.json says.
QWEN_TOKENS = (8, 4096)
# transformers shrinks larger pictures of the Idefics3 family.
IDEFICS3_MOST = 4096


@dataclass(frozen=True)
class Shown:
    """A picture in a prompt. `ids`: int32 [tokens]; `is_vector`: bool [tokens], where the picture's vectors are.

    `positions`: int32 [3, tokens], relative to the first; None: one position after the other.
    """

    ids: np.ndarray
    is_vector: np.ndarray
    positions: np.ndarray | None = None

    @property
    def vectors(self) -> int:
        """How many vectors the picture has."""
        return int(self.is_vector.sum())


class Sight:
    """How a base sees. `image_token`: the placeholder that its template writes once for a picture. `three_positions`:
    whether tokens have multimodal rotary positions (time, height, width). `is_mutual`: whether the vectors of a picture
    attend to each other, those before to those after.

    `pictures`: the pictures that were shown so far, and the number of each one's first vector: equal numbers stand for
    the same vector of the same picture. `vectors`: how many vectors they have.
    """

    three_positions = False
    is_mutual = False
    patches_a_vector: int

    def __init__(self, config: Any, folder: Path, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.settings = image_settings(folder)
        self.image_token = self._placeholder()
        self.image_text: str = tokenizer.convert_ids_to_tokens(self.image_token)
        self.parts_only = _reads_only_parts(tokenizer)
        self.pictures: dict[str, tuple[Picture, int]] = {}
        self.vectors = 0
        self._shown: dict[tuple[int, int], Shown] = {}

    def _placeholder(self) -> int:
        return self.config.image_token_id

    def complete(self, rendered: str) -> str:
        """A conversation that the template has rendered, as the family's processor completes it around its pictures."""
        return rendered

    def shown(self, picture: Picture) -> Shown:
        """Raises JobError("dataset_invalid") for a shape that the base cannot see."""
        size = (picture.height, picture.width)
        if size not in self._shown:
            self._shown[size] = self._show(*size)
        return self._shown[size]

    def _show(self, height: int, width: int) -> Shown:
        raise NotImplementedError

    def first_vector(self, picture: Picture) -> int:
        """The number of a picture's first vector."""
        if picture.sha256 not in self.pictures:
            self.pictures[picture.sha256] = picture, self.vectors
            self.vectors += self.shown(picture).vectors
        return self.pictures[picture.sha256][1]

    def extra_tokens(self, pictures: Iterable[Picture]) -> int:
        """The tokens that pictures have beside their placeholders."""
        return sum(len(self.shown(picture).ids) - 1 for picture in pictures)

    def require_shown(self, text: str, pictures: list[Picture]) -> None:
        """Raises JobError("dataset_invalid") if a rendered conversation shows another number of pictures."""
        shown = text.count(self.image_text)
        if shown != len(pictures):
            raise JobError(
                "dataset_invalid",
                f"The model's chat template shows {shown} pictures of a row that has {len(pictures)}. Put each picture "
                "into a message of the role user.",
            )


class TiledSight(Sight):
    """Idefics3 and SmolVLM: tiles of one size, row by row, then the whole picture in the size of a tile."""

    def __init__(self, config: Any, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__(config, folder, tokenizer)
        side = config.vision_config.image_size // config.vision_config.patch_size
        self.patches_a_vector = config.scale_factor**2
        self.tile_tokens = side * side // config.scale_factor**2

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0) if the picture is one tile."""
        if not self.settings.get("do_image_splitting", True):
            return 0, 0
        tile = self.settings["max_image_size"]["longest_edge"]
        if self.settings.get("do_resize", True):
            height, width = _with_longest(height, width, self.settings["size"]["longest_edge"])
        ratio = width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / ratio) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * ratio) / tile) * tile
        return (height // tile, width // tile) if height > tile or width > tile else (0, 0)

    def _show(self, height: int, width: int) -> Shown:
        rows, columns = self.grid(height, width)
        around, tile = "<fake_token_around_image>", self.image_text * self.tile_tokens
        lines = [
            "".join(f"{around}<row_{row}_col_{column}>{tile}" for column in range(1, columns + 1))
            for row in range(1, rows + 1)
        ]
        text = "".join(line + "\n" for line in lines) + ("\n" if rows else "") + f"{around}<global-img>{tile}{around}"
        ids = np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
        return Shown(ids, ids == self.image_token)


class GridSight(Sight):
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a vector for each square of merged patches, with its own position in two
    dimensions.
    """

    three_positions = True

    def __init__(self, config: Any, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__(config, folder, tokenizer)
        self.patches_a_vector = config.vision_config.spatial_merge_size**2

    @property
    def square(self) -> int:
        """The side of what one vector sees, in pixels."""
        vision = self.config.vision_config
        return vision.patch_size * vision.spatial_merge_size

    @property
    def limits(self) -> dict[str, int]:
        """The least and the most pixels of a picture, as the image processor's `size`."""
        least, most = (tokens * self.square**2 for tokens in QWEN_TOKENS)
        return {"shortest_edge": least, "longest_edge": most}

    def _show(self, height: int, width: int) -> Shown:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        limits = self.limits
        try:
            resized = smart_resize(height, width, self.square, limits["shortest_edge"], limits["longest_edge"])
        except ValueError as problem:
            raise JobError(
                "dataset_invalid",
                f"A picture of {width} x {height} pixels is too narrow for this base, which takes sides of up to 200 "
                "to 1. Cut it.",
            ) from problem
        rows, columns = (side // self.square for side in resized)
        places = np.arange(rows * columns, dtype=np.int32)
        positions = np.stack([np.zeros_like(places), places // columns, places % columns])
        return Shown(np.full(len(places), self.image_token, dtype=np.int32), places >= 0, positions)


class SquareSight(Sight):
    """Gemma 3: each picture is stretched to one square and has the same number of vectors, which attend to each other.

    As in the engine, without crops of long pictures ("pan and scan"), which its processor makes only on request.
    """

    is_mutual = True

    def __init__(self, config: Any, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__(config, folder, tokenizer)
        side = config.vision_config.image_size // config.vision_config.patch_size
        self.patches_a_vector = side * side // config.mm_tokens_per_image

    def _placeholder(self) -> int:
        # The template writes the mark that begins a picture.
        return self.config.boi_token_id

    def complete(self, rendered: str) -> str:
        """Puts blank lines around each picture, as the family's processor does."""
        return rendered.replace(self.image_text, f"\n\n{self.image_text}\n\n")

    def _show(self, height: int, width: int) -> Shown:
        vectors = [self.config.image_token_id] * self.config.mm_tokens_per_image
        ids = np.array([self.config.boi_token_id, *vectors, self.config.eoi_token_id], dtype=np.int32)
        return Shown(ids, ids == self.config.image_token_id)


FAMILIES = {
    "idefics3": TiledSight,
    "smolvlm": TiledSight,
    "qwen2_vl": GridSight,
    "qwen2_5_vl": GridSight,
    "qwen3_vl": GridSight,
    "gemma3": SquareSight,
}


def is_vision(config: Any) -> bool:
    """Whether a base's transformers configuration is that of a model that sees, in a family that can be trained."""
    return config.model_type in FAMILIES


def sight_of(config: Any, folder: Path, tokenizer: Tokenizer) -> Sight | None:
    """How the base in a folder sees; None if it reads text alone. Raises JobError("base_missing") if its image
    processor's settings are not there.
    """
    if not is_vision(config):
        return None
    if not image_settings(folder):
        raise JobError(
            "base_missing",
            "The base sees pictures, but its folder has no preprocessor_config.json, which says how it reads them. "
            "Add it again with all its files.",
        )
    return FAMILIES[config.model_type](config, folder, tokenizer)


def image_settings(folder: Path) -> dict[str, Any]:
    """The settings of a base's image processor, from the file of its own or that of the whole processor; empty if
    neither is there.
    """
    for name, key in (("preprocessor_config.json", None), ("processor_config.json", "image_processor")):
        if (folder / name).exists():
            settings_file = json.loads((folder / name).read_text())
            if settings := settings_file if key is None else settings_file.get(key):
                return settings
    return {}


def _with_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """The size with this longest side, as Idefics3's image processor rounds it."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > IDEFICS3_MOST:
        width, height = IDEFICS3_MOST, int(IDEFICS3_MOST / ratio)
    elif height > width and height > IDEFICS3_MOST:
        height, width = IDEFICS3_MOST, int(IDEFICS3_MOST * ratio)
    return max(height, 1), max(width, 1)


def _reads_only_parts(tokenizer: Tokenizer) -> bool:
    """Whether the chat template reads lists of parts alone, also where there is only text. As the engine finds it
    (engine/chat/pictures.ts).
    """
    text = "ZqxXqz"

    def shows(content: object) -> bool:
        try:
            return text in tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        except Exception:
            return False

    return not shows(text) and shows([{"type": "text", "text": text}])
