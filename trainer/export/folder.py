"""Writes the small files of an exported checkpoint so that readers of other versions understand them the same way."""

import json
import shutil
from pathlib import Path
from typing import Any

from trainer.data.ends import end_token_of, end_tokens
from trainer.data.sight import PROCESSOR_FILES
from trainer.data.tokenizer import SENTENCEPIECE_FILES, Tokenizer
from trainer.runtime.errors import JobError
from trainer.runtime.json_object import is_object

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Files that some readers need besides tokenizer.json. Code in a checkpoint is never copied.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    *SENTENCEPIECE_FILES,
)
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
# Those of the base that the folder of an adapter may not have.
OTHER_FILES = ("generation_config.json", *LICENSE_FILES, *PROCESSOR_FILES, *SENTENCEPIECE_FILES)
# Keys with a file's location.
LOCAL_KEYS = (
    "_name_or_path",
    "_model_name_or_path",
    "is_local",
    "local_files_only",
    "name_or_path",
    "_commit_hash",
    "_from_model_config",
)
# Tokenizer classes of transformers 5, and their names in earlier releases.
OLD_NAMES = {"TokenizersBackend": "PreTrainedTokenizerFast", "PythonBackend": "PreTrainedTokenizer"}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a checkpoint. Raises JobError("base_missing") if there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise JobError("base_missing", f"{path.name} of the checkpoint cannot be read: {problem}.") from problem
    if not is_object(value):
        raise JobError("base_missing", f"{path.name} of the checkpoint is not a JSON object.")
    return value


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes an object as transformers does: indented, with letters of all alphabets as they are."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def without_local_keys(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the places of files on this machine."""
    return {name: value for name, value in values.items() if name not in LOCAL_KEYS}


def write_config(source: Path, out: Path, dtype: str | None, untied: bool) -> None:
    """Writes `config.json` as transformers 5 does, plus the names that earlier releases and other readers need. Raises
    JobError("parameter_not_supported") for a checkpoint that brings its own code.
    """
    config = without_local_keys(read_json(source / "config.json"))
    if config.get("auto_map"):
        raise JobError(
            "parameter_not_supported", "The checkpoint needs code of its own to be loaded, which no export takes along."
        )
    if untied:
        config["tie_word_embeddings"] = False
    kind = TORCH_NAMES[dtype] if dtype else config.get("dtype") or config.get("torch_dtype")
    if kind:
        # `torch_dtype` is the name before transformers 4.56.
        config |= {"dtype": kind, "torch_dtype": kind}
    for part in (config, config.get("text_config")):
        if is_object(part):
            _add_rope(part)
    write_json(out / "config.json", config)


def _add_rope(config: dict[str, Any]) -> None:
    """Adds the base of the rotary embeddings where releases before transformers 5 look for it. Without it they assume
    10,000 and answer gibberish.
    """
    rope = config.get("rope_parameters")
    if not is_object(rope) or not isinstance(rope.get("rope_theta"), int | float):
        return
    config.setdefault("rope_theta", rope["rope_theta"])
    if rope.get("rope_type", "default") != "default":
        scaling = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
        config.setdefault("rope_scaling", scaling)
    if "partial_rotary_factor" in rope:
        config.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])


def write_tokenizer(source: Path, out: Path, tokenizer: Tokenizer) -> None:
    """Copies the tokenizer's files and writes a configuration that all readers understand alike. `tokenizer` is loaded
    from `source`.
    """
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    if not (out / "tokenizer.json").exists():
        tokenizer.save_pretrained(out)
    config = without_local_keys(read_json(out / "tokenizer_config.json"))
    config.pop("backend", None)
    name = config.get("tokenizer_class")
    config["tokenizer_class"] = OLD_NAMES.get(name, name) if name else "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        # The name for a list before transformers 5, which expects an object under the other. Version 5 reads both.
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    # Both as a file and in the configuration, for readers that do not know the file.
    (out / "chat_template.jinja").write_text(tokenizer.chat_template)
    config["chat_template"] = tokenizer.chat_template
    write_json(out / "tokenizer_config.json", config)


def write_generation_config(source: Path, out: Path, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """The base's generation defaults plus every token that ends an answer: without one of them the model would not
    stop.
    """
    file = source / "generation_config.json"
    values = without_local_keys(read_json(file)) if file.exists() else {}
    ends = end_tokens(
        values.get("eos_token_id"), config.get("eos_token_id"), tokenizer.eos_token_id, end_token_of(tokenizer)
    )
    if ends:
        values["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (ends or [None])[0]
    if values.get("pad_token_id") is None and pad is not None:
        values["pad_token_id"] = pad
    for name in ("output_attentions", "output_hidden_states"):
        values.pop(name, None)
    write_json(out / "generation_config.json", values)


def copy_other(source: Path, out: Path, names: tuple[str, ...] = OTHER_FILES) -> None:
    """Copies those of the files that the checkpoint has and `out` has not."""
    for name in names:
        if (source / name).exists() and not (out / name).exists():
            shutil.copyfile(source / name, out / name)
