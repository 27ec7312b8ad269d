"""The file of a projector that was trained, for the engine."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from trainer.data.sight import PROCESSOR_FILES
from trainer.model import projector, vision
from trainer.model.model import Model, base_of
from trainer.runtime.converters import run_converter
from trainer.runtime.errors import JobError, converting
from trainer.runtime.spec import ModelSpec

NAME = "mmproj.gguf"
# As set-up converts that of a base.
TYPE = "f16"


def write_projector(model: Model, spec: ModelSpec, out: Path) -> Path:
    """Converts the model's projector, with its base's vision tower, to `out/mmproj.gguf`. Raises JobError("internal")
    if the converter writes none.
    """
    from safetensors.torch import save_file

    file, base = out / NAME, Path(spec.base.path)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        # The file has the folder's name in it.
        folder = Path(temporary) / base.name
        folder.mkdir()
        for name in ("config.json", *PROCESSOR_FILES):
            if (base / name).exists():
                shutil.copyfile(base / name, folder / name)
        tensors = seeing_tensors(base)
        for end, weight in projector.weights_of(base_of(model)).items():
            names = [name for name in tensors if name == end or name.endswith(f".{end}")]
            if len(names) != 1:
                raise JobError("internal", f"The base's checkpoint has {len(names)} tensors of the projector's {end}.")
            tensors[names[0]] = weight.detach().float().cpu().contiguous()
        save_file(tensors, folder / "model.safetensors")
        arguments = [str(folder), "--mmproj", "--outfile", str(file), "--outtype", TYPE]
        with converting("The projector cannot be converted for the engine", "Train without it in target_modules."):
            run_converter(Path(spec.converters), "convert_hf_to_gguf.py", arguments)
    if not file.exists():
        raise JobError("internal", "The converter left no projector.")
    return file


def seeing_tensors(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint's vision tower and projector."""
    from safetensors import safe_open

    seeing = re.compile(rf"(^|\.)({'|'.join(vision.PARTS)})\.")
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys() if seeing.search(name)}  # noqa: SIM118
    return tensors
