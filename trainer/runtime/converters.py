"""Runs llama.cpp's converters inside this process: importing torch again would take longer than the conversion."""

import contextlib
import json
import runpy
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

# Fields that say how many layers predict a further token.
PREDICTION_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")
# Fields that name the kind of each layer.
LAYER_KINDS = ("layer_types", "layers_block_type")
# Kinds that transformers renamed, and how they were called.
FORMER_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def run_converter(converters: Path, script: str, arguments: list[str]) -> None:
    """Runs one of llama.cpp's conversion scripts. Its prints go to stderr, since stdout belongs to the caller's
    protocol.

    Raises RuntimeError if the script fails.
    """
    path = converters / script
    if not path.exists():
        raise RuntimeError(f"The converter {path} is missing: run the set-up again.")
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with packages(converters), suited(Path(arguments[0])):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(f"{script} failed: {end.code}") from end
    finally:
        sys.argv = before


@contextlib.contextmanager
def packages(converters: Path) -> Generator[None]:
    """llama.cpp's packages can be imported, with the gguf package of its own release and not an installed one. Their
    prints go to stderr.
    """
    before = list(sys.path)
    sys.path[:0] = [str(converters / "gguf-py"), str(converters)]
    for name in [name for name in sys.modules if name == "gguf" or name.startswith("gguf.")]:
        del sys.modules[name]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = before


class LayerKind(str):
    """The kind of a layer, which equals the name that it had before transformers renamed it: converters ask for one or
    the other.
    """

    __slots__ = ("former",)
    former: str

    def __new__(cls, kind: str, former: str) -> "LayerKind":
        """`kind` is the string; `former`, its name in earlier releases."""
        new = super().__new__(cls, kind)
        new.former = former
        return new

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or self.former == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Sets of kinds have the present name, or both.
    __hash__ = str.__hash__

    def __deepcopy__(self, _copied: dict[int, object]) -> "LayerKind":
        return self


@contextlib.contextmanager
def suited(base: Path) -> Generator[None]:
    """The library converts what is in the checkpoint in `base`, and not what its configuration alone says: layers that
    predict further tokens are left out if their weights were, as transformers saves none; kinds of layers are known
    under the names before and after transformers renamed them; a text begins with the vocabulary's first token if the
    tokenizer begins it so; projectors get the token that ends a row of a picture, where their rules take it from the
    embeddings. To be used within `packages`.
    """
    ModelBase: Any = import_module("conversion").ModelBase
    read, create = ModelBase.load_hparams, ModelBase.__init__
    has_prediction = next(prediction_tensors(base), None) is not None

    def load(folder: Path, *rest: Any, **named: Any) -> dict[str, Any]:
        return suit(read(folder, *rest, **named))

    def initialize(model: Any, *rest: Any, **named: Any) -> None:
        # Some rules read the file themselves.
        if named.get("hparams"):
            named["hparams"] = suit(named["hparams"])
        create(model, *rest, **named)

    def suit(fields: dict[str, Any]) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [fields, fields.get("text_config") or {}]
        for part in parts:
            if not has_prediction:
                part.update({name: 0 for name in PREDICTION_LAYERS if part.get(name)})
            for name in LAYER_KINDS:
                if isinstance(part.get(name), list):
                    part[name] = _with_former_names(part[name])
        return fields

    # That of the converters, which may have been imported before.
    without, Special = ModelBase.no_mtp, import_module("conversion.base").gguf.SpecialVocab
    find = Special.__init__

    def find_specials(specials: Any, folder: Path, *rest: Any, **named: Any) -> None:
        find(specials, folder, *rest, **named)
        # Without the field the library decides by the kind of vocabulary.
        if "bos" in specials.special_token_ids and "bos" not in specials.add_special_token:
            begins = _first_token(Path(folder))
            if begins is not None:
                specials.add_special_token["bos"] = begins == specials.special_token_ids["bos"]

    Projector = import_module("conversion.base").MmprojModel
    leave_out = Projector.filter_tensors.__func__

    def keep_embeddings(kind: Any, item: tuple[str, Any]) -> tuple[str, Any] | None:
        # The rules of Pixtral's take one row of them, and are not given them.
        needed = getattr(kind, "use_break_tok", False) and item[0].endswith("embed_tokens.weight")
        return item if needed else leave_out(kind, item)

    ModelBase.load_hparams, ModelBase.__init__, ModelBase.no_mtp = staticmethod(load), initialize, not has_prediction
    Special.__init__, Projector.filter_tensors = find_specials, classmethod(keep_embeddings)
    try:
        yield
    finally:
        ModelBase.load_hparams, ModelBase.__init__, ModelBase.no_mtp = staticmethod(read), create, without
        Special.__init__, Projector.filter_tensors = find, classmethod(leave_out)


def _first_token(folder: Path) -> int | None:
    """The token with which the tokenizer in `folder` begins a text; None if it has no tokenizer.json."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    ids = Tokenizer.from_file(str(file)).encode("a").ids
    return ids[0] if ids else None


def _with_former_names(kinds: list[str]) -> list[str]:
    return [LayerKind(kind, FORMER_KINDS[kind]) if kind in FORMER_KINDS else kind for kind in kinds]


def prediction_tensors(base: Path) -> Iterator[str]:
    """The names of a checkpoint's weights that predict a further token: those below mtp, and those of more layers than
    its configuration counts.
    """
    config = json.loads((base / "config.json").read_text())
    text = config.get("text_config") or config
    count = text.get("num_hidden_layers") or sys.maxsize
    for name in _tensor_names(base):
        parts = name.split(".")
        number = next((part for before, part in pairwise(parts) if before == "layers"), "")
        is_seen = any(part.startswith(("vis", "audio", "encoder")) for part in parts)
        if any(part.startswith("mtp") for part in parts) or (
            number.isdecimal() and int(number) >= count and not is_seen
        ):
            yield name


def _tensor_names(base: Path) -> Iterator[str]:
    for file in base.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = opened.read(int.from_bytes(opened.read(8), "little"))
        yield from json.loads(header)
