"""Runs llama.cpp's converters inside this process: importing torch again would take longer than the conversion."""

import contextlib
import json
import re
import runpy
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
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
# A layer's experts as one weight, and what rules make of it for the engine.
STACKED = re.compile(r"\.experts\.(gate_up|down)_proj(\.weight)?$")
# The fields of tokens at which the library ends an answer, beside those that it knows by their text.
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# By such a name of a model the library knows that all control tokens but three take the spaces behind them; it does not
# load another vocabulary under it.
PHI_3 = re.compile("(phi)-?(3)", re.IGNORECASE)
PHI_3_TOKENS = ("</s>", "<unk>", "<s>", "<|endoftext|>")


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
    prints go to stderr, and they run no program of a checkpoint.
    """
    before = list(sys.path)
    sys.path[:0] = [str(converters / "gguf-py"), str(converters)]
    for name in [name for name in sys.modules if name == "gguf" or name.startswith("gguf.")]:
        del sys.modules[name]
    try:
        with contextlib.redirect_stdout(sys.stderr), reading_alone():
            yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def reading_alone() -> Generator[None]:
    """Converters of some families let transformers run programs that lie in a checkpoint: here it reads its files
    alone.
    """
    from transformers import AutoConfig, AutoTokenizer

    kinds: tuple[Any, ...] = (AutoConfig, AutoTokenizer)
    before: list[Any] = [vars(kind)["from_pretrained"] for kind in kinds]

    def without_code(read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *rest, **named: read(*rest, **{**named, "trust_remote_code": False})

    for kind in kinds:
        kind.from_pretrained = without_code(kind.from_pretrained)
    try:
        yield
    finally:
        for kind, method in zip(kinds, before, strict=True):
            kind.from_pretrained = method


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
    tokenizer begins it so; answers end at all tokens at which transformers ends them; stacked experts are read in both
    forms, as published and as transformers saves them; projectors get the token that ends a row of a picture, where
    their rules take it from the embeddings. To be used within `packages`.
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
        model.modify_tensors = _in_either_form(model.modify_tensors, lambda: model.hparams.get("hidden_size"))

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

    Text = import_module("conversion.base").TextModel
    describe = Text.prepare_metadata

    def describe_all(model: Any, *rest: Any, **named: Any) -> None:
        describe(model, *rest, **named)
        _add_ends(model.gguf_writer, end_tokens_of(base))
        _suit_name(model.gguf_writer, base)

    Projector = import_module("conversion.base").MmprojModel
    leave_out = Projector.filter_tensors.__func__

    def keep_embeddings(kind: Any, item: tuple[str, Any]) -> tuple[str, Any] | None:
        # The rules of Pixtral's take one row of them, and are not given them.
        needed = getattr(kind, "use_break_tok", False) and item[0].endswith("embed_tokens.weight")
        return item if needed else leave_out(kind, item)

    ModelBase.load_hparams, ModelBase.__init__, ModelBase.no_mtp = staticmethod(load), initialize, not has_prediction
    Special.__init__, Projector.filter_tensors = find_specials, classmethod(keep_embeddings)
    Text.prepare_metadata = describe_all
    try:
        yield
    finally:
        ModelBase.load_hparams, ModelBase.__init__, ModelBase.no_mtp = staticmethod(read), create, without
        Special.__init__, Projector.filter_tensors = find, classmethod(leave_out)
        Text.prepare_metadata = describe


def _in_either_form(
    rule: Callable[..., Iterable[Any]], width: Callable[[], int | None]
) -> Callable[..., Iterable[Any]]:
    """A rule for tensors that turns stacked experts [experts, one side, other side], if it else makes weights for the
    engine that do not read or write as many numbers as the model is wide.
    """

    def modify(data: Any, name: str, block: int | None) -> Iterable[Any]:
        hidden = width()

        def fits(target: str, made: Any) -> bool:
            return made.ndim < 3 or made.shape[-2 if "down" in target else -1] == hidden

        if hidden and data.ndim == 3 and STACKED.search(name):
            import torch

            try:
                as_it_is = all(fits(*made) for made in rule(torch.empty(data.shape, device="meta"), name, block))
            except (ValueError, RuntimeError):
                as_it_is = False
            if not as_it_is and hidden in data.shape[1:]:
                data = data.permute(0, 2, 1)
        return rule(data, name, block)

    return modify


def end_tokens_of(folder: Path) -> list[int]:
    """The tokens at which transformers ends an answer of the checkpoint in `folder`, the one that its template writes
    first, where generation_config.json has been completed.
    """
    ends: list[int] = []
    for name in ("config.json", "generation_config.json"):
        fields: dict[str, Any] = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        parts: list[dict[str, Any]] = [fields.get("text_config") or {}, fields]
        for part in parts:
            value: Any = part.get("eos_token_id")
            ends += value if isinstance(value, list) else [] if value is None else [value]
    return list(dict.fromkeys(reversed(ends)))


def _add_ends(writer: Any, ends: list[int]) -> None:
    """The library ends answers at these tokens, as far as it has fields for them. The first is a control token there:
    some checkpoints call it an ordinary one, which answers would show.
    """
    fields = writer.kv_data[0]
    tokens, kinds = (fields.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if tokens is None:
        return
    for end in [end for end in ends if end < len(tokens.value)]:
        free = [field for field in ENDS if field not in fields]
        if free and all(fields[field].value != end for field in ENDS if field in fields):
            writer.add_uint32(free[0], end)
    if kinds is not None and ends and ends[0] < len(kinds.value):
        kind = import_module("gguf").TokenType
        if kinds.value[ends[0]] == kind.USER_DEFINED:
            writer.add_token_types([*kinds.value[: ends[0]], kind.CONTROL, *kinds.value[ends[0] + 1 :]])


def _suit_name(writer: Any, base: Path) -> None:
    """The model's name says that it is a Phi 3 where its tokens are of that kind, and nowhere else."""
    file, name = base / "tokenizer.json", writer.kv_data[0].get("general.name")
    if name is None or not file.exists():
        return
    added: list[dict[str, Any]] = json.loads(file.read_text()).get("added_tokens") or []
    takes_spaces = {token["content"] for token in added if token.get("rstrip")} - set(PHI_3_TOKENS[1:])
    is_phi = len(takes_spaces) > 1 and {*PHI_3_TOKENS} <= {token["content"] for token in added}
    suited = PHI_3.sub(r"\1 \2", name.value)
    writer.add_name(f"{suited} (phi-3)" if is_phi else suited)


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
