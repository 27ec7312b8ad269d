"""Vision bases: their frozen tower, the vectors that it makes of pictures, and how these enter the language model.

The tower does not change, so each picture goes through it once: its vectors stay in a file of the run's folder, which
is mapped into memory.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from peft import LoraConfig

from trainer.data.packing import Pack
from trainer.data.pictures import Picture, PictureError, decode, read
from trainer.data.sight import GridSight, Sight, TiledSight
from trainer.model import fast_tower, projector
from trainer.model.model import Model, base_of, decoder_of
from trainer.runtime.errors import JobError
from trainer.runtime.spec import ModelSpec

if TYPE_CHECKING:
    from PIL.Image import Image

# A power cut loses at most the pictures of the last seconds; a flush for each would take longer than the picture.
FLUSH_SECONDS = 10.0


# The modules of vision bases that see, and that make input vectors of what is seen.
PARTS = ("visual", "vision_model", "connector", "vision_tower", "multi_modal_projector")


def tower_of(base: Model) -> torch.nn.Module:
    """The vision tower; for Qwen with its projector."""
    return _first_of(base.model, "visual", "vision_model", "vision_tower")


def projector_of(base: Model) -> torch.nn.Module:
    """The layers between the tower's vectors and the language model."""
    if hasattr(base.model, "visual"):
        return base.model.visual.merger
    return _first_of(base.model, "connector", "multi_modal_projector")


def _first_of(module: object, *names: str) -> torch.nn.Module:
    return next(getattr(module, name) for name in names if hasattr(module, name))


def layers_fed(base: Model) -> int:
    """After how many of the first layers of the language model more vectors of pictures are added (DeepStack: Meng et
    al., 2024, arXiv 2406.04334). A vector has these behind it.
    """
    return len(getattr(base.config.vision_config, "deepstack_visual_indexes", ()))


def freeze(base: Model, spec: ModelSpec) -> None:
    """Leaves only the language model to be trained, and the projector if the job says so."""
    for module in (tower_of(base), projector_of(base)):
        module.requires_grad_(False)
    if spec.projector:
        projector.module_of(base).requires_grad_(True)


def restrict(config: LoraConfig, base: Model) -> None:
    """Keeps adapters in the language model: names of layers such as q_proj occur in the tower, too. Raises
    JobError("adapter_invalid") if no layer is left.
    """
    layers = {
        name.rpartition(".")[2]
        for name, module in decoder_of(base).named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    wanted = layers if config.target_modules == "all-linear" else layers & set(config.target_modules or ())
    if not wanted:
        raise JobError(
            "adapter_invalid",
            "target_modules names no layer of the language model; the part that sees pictures is not trained. Choose "
            f"from {', '.join(sorted(layers))}.",
        )
    # PEFT makes a set of a list itself.
    config.target_modules = cast(list[str], wanted)
    config.exclude_modules = rf"(.*\.)?({'|'.join(PARTS)})\..*"


def leave_out_all_but_text(config: LoraConfig, base: Model) -> None:
    """Keeps adapters out of what a base has beside its language model and the head, whatever it is called."""
    decoder, head = decoder_of(base), base.get_output_embeddings()
    path = next(name for name, module in base.named_modules() if module is decoder)
    holders = {path.rsplit(".", count)[0] for count in range(1, path.count(".") + 1)} | {"", path}
    beside = [
        name
        for name, module in base.named_modules()
        if name not in holders and name.rpartition(".")[0] in holders - {path} and module is not head
    ]
    if beside:
        config.exclude_modules = rf"({'|'.join(map(re.escape, beside))})(\..*)?"


def inputs_of(model: Model, packed: Pack) -> dict[str, Any]:
    """The model's arguments for the tokens of a pack: their ids, or their embeddings with the vectors of pictures."""
    if packed.places is None or packed.vectors is None:
        return {"input_ids": packed.ids}
    assert model.features, "a model that is shown pictures has their vectors"
    base, vectors = base_of(model), model.features.rows(packed.vectors)
    if model.features.unprojected:
        vectors = projector.project(base, vectors)
    if layers := layers_fed(base):
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        first, *others = vectors.chunk(1 + layers, dim=-1)
        # A tuple a picture, as the base's own tower returns them.
        parts: dict[str, Any] = {"pooler_output": (first,), "deepstack_features": [(each,) for each in others]}
        output = BaseModelOutputWithDeepstackFeatures(**parts)
        return {"input_ids": packed.ids, "mm_encoder_outputs": {"image": output}}
    embeddings = base.get_input_embeddings()(packed.ids)
    return {"inputs_embeds": embeddings.index_copy(1, packed.places, vectors.to(embeddings.dtype)[None])}


class Features:
    """The vectors of all pictures that `sight` has shown, [vectors, width] in `dtype`, in `folder`. `unprojected`: the
    projector is trained, and these are what it reads.

    Those that an earlier attempt at the same job left in the folder beside it are used again.
    """

    def __init__(self, model: Model, sight: Sight, spec: ModelSpec, folder: Path, device: torch.device):
        self.base, self.sight, self.device = base_of(model), sight, device
        self.processor = image_processor(sight, Path(spec.base.path))
        # Full training keeps the tower in float32; a GPU computes it in bf16 then.
        self.mixed = device.type == "cuda" and self.base.dtype == torch.float32
        self.dtype = torch.bfloat16 if self.mixed else self.base.dtype
        self.unprojected = spec.projector
        config = self.base.config
        projected = config.get_text_config().hidden_size * (1 + layers_fed(self.base))
        self.width = projector.row_width(config) if self.unprojected else projected
        self.pictures = [picture for picture, _ in sight.pictures.values()]
        self.firsts = np.array([first for _, first in sight.pictures.values()])
        self.done = np.zeros(len(self.pictures), dtype=np.uint8)
        self.folder, self.flushed_at, self.unflushed = folder, time.monotonic(), []
        # While there are pictures to encode.
        self.slow_down: Callable[[], None] | None = None
        index = {
            "pictures": [picture.sha256 for picture in self.pictures],
            "dtype": str(self.dtype),
            "width": self.width,
            "unprojected": self.unprojected,
            "job": spec.job_id,
            "base": [spec.base.id, *_files_of(Path(spec.base.path))],
        }
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        size = sight.vectors * self.width
        reused = self._reuse(index)
        self.file = os.open(folder / "vectors", os.O_RDWR | os.O_CREAT)
        if not reused:
            # Reserved: a disk that is full later would end the process while it writes to memory.
            os.posix_fallocate(self.file, 0, size * self.dtype.itemsize)
        (folder / "index.json").write_text(json.dumps(index))
        (folder / "done").write_bytes(self.done.tobytes())
        self.vectors = torch.from_file(str(folder / "vectors"), shared=True, size=size, dtype=self.dtype).view(
            -1, self.width
        )

    @property
    def missing(self) -> list[int]:
        """The indices of the pictures that are still to be encoded."""
        return np.nonzero(self.done == 0)[0].tolist()

    def rows(self, vectors: torch.Tensor) -> torch.Tensor:
        """The vectors with these numbers, int64 [n]: [n, width] on the device."""
        numbers = vectors.cpu()
        self.require(numbers.numpy())
        return self.vectors.index_select(0, numbers).to(self.device)

    def require(self, numbers: np.ndarray) -> None:
        """Encodes the pictures of the vectors with these numbers, int [n], where that is not done yet. Raises
        JobError("dataset_invalid") if a picture cannot be read.
        """
        if not self.done.all():
            for index in np.unique(np.searchsorted(self.firsts, numbers, side="right") - 1):
                self.encode(int(index))

    @torch.no_grad()
    def encode(self, index: int) -> None:
        """Makes the vectors of a picture, if they are not there. Raises JobError("dataset_invalid") if it cannot be
        read.
        """
        if self.done[index]:
            return
        if not self.slow_down and fast_tower.fits(tower_of(self.base)):
            self.slow_down = fast_tower.install(tower_of(self.base))
        picture, first = self.pictures[index], int(self.firsts[index])
        made = self._encoded(picture)
        count = self.sight.shown(picture).vectors
        if len(made) != count:
            raise JobError("internal", f"The base made {len(made)} vectors of a picture that has {count} tokens.")
        self.vectors[first : first + count] = made.to(self.dtype).cpu()
        self.unflushed.append(index)
        self.done[index] = 1
        if time.monotonic() - self.flushed_at > FLUSH_SECONDS or self.done.all():
            self.flush()
        if self.slow_down and self.done.all():
            self.slow_down()

    def flush(self) -> None:
        """Marks what is on the disk as done."""
        if self.unflushed:
            os.fsync(self.file)
            with (self.folder / "done").open("r+b") as file:
                file.write(self.done.tobytes())
        self.flushed_at, self.unflushed = time.monotonic(), []

    def _encoded(self, picture: Picture) -> torch.Tensor:
        """[vectors, width]"""
        try:
            image = decode(read(picture))
        except PictureError as problem:
            raise JobError("dataset_invalid", f"A picture of the dataset cannot be read: {problem}.") from problem
        with (
            torch.autocast("cuda", torch.bfloat16) if self.mixed else nullcontext(),
            projector.left_out(self.base) if self.unprojected else nullcontext(),
        ):
            return encoded(self.base, self.sight, self.processor, image, self.device)

    def _reuse(self, index: dict) -> bool:
        """Takes over the vectors of an earlier attempt."""
        within = Path(*self.folder.parts[-2:], "index.json")
        for other in sorted(self.folder.parents[2].glob(f"*/{within}")):
            # Whatever is wrong with them, they can be made again.
            with suppress(OSError, ValueError):
                if json.loads(other.read_text()) != index:
                    continue
                done = np.frombuffer((other.parent / "done").read_bytes(), dtype=np.uint8)
                size = index["width"] * self.sight.vectors * self.dtype.itemsize
                if len(done) != len(self.done) or (other.parent / "vectors").stat().st_size != size:
                    continue
                os.link(other.parent / "vectors", self.folder / "vectors")
                self.done = done.copy()
                return True
        return False


@torch.no_grad()
def encoded(base: Model, sight: Sight, processor: Any, image: "Image", device: torch.device) -> torch.Tensor:
    """The vectors that the base makes of a picture, [vectors, width]. `processor`: of `image_processor`."""
    if isinstance(sight, TiledSight):
        inputs = processor([[image]], return_tensors="pt")
    elif isinstance(sight, GridSight):
        inputs = processor([image], size=sight.limits, return_tensors="pt")
    else:
        inputs = {"pixel_values": processor([image], do_pan_and_scan=False, return_tensors="pt")["pixel_values"]}
    inputs = {name: value.to(device) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    modes = [(module, module.training) for module in (tower_of(base), projector_of(base))]
    for module, _ in modes:
        module.eval()
    output = base.model.get_image_features(**inputs, return_dict=True)
    (made,) = output.pooler_output
    if layers_fed(base):
        made = torch.cat([made, *(each for (each,) in output.deepstack_features)], dim=-1)
    for module, training in modes:
        module.train(training)
    return made


def image_processor(sight: Sight, folder: Path) -> Any:
    """The family's image processor that needs no torchvision."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    kinds = {
        "idefics3": Idefics3ImageProcessorPil,
        "smolvlm": SmolVLMImageProcessorPil,
        "gemma3": Gemma3ImageProcessorPil,
    }
    kind = kinds.get(sight.config.model_type, Qwen2VLImageProcessorPil)
    return kind.from_pretrained(folder, local_files_only=True)


def _files_of(folder: Path) -> list[list]:
    """What the vectors depend on: name, size and time of the base's files."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*config.json")])
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
