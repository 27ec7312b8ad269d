"""Tokenizers and chat templates of the real models, from llama.cpp's tests: the set-up for development unpacks them.

A family whose vocabulary is not among them has the default base's, with the special tokens of its template.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

from trainer.tests.make_tiny import TOKENIZER, VOCABULARY, write_tokenizer

ROOT = Path(__file__).parents[2]

VOCABULARIES = ROOT / ".local/llama/vocabularies"
TEMPLATES = ROOT / ".local/llama/source/models/templates"
# The first pieces of a vocabulary, the shorter and more frequent; single characters come last and are all kept.
PIECES = 4096

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
OTHERS = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How the real tokenizers of byte-level vocabularies split text before they merge.
SPLITS = {
    "qwen2": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+{OTHERS}",
    "qwen35": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+{OTHERS}",
    "llama-bpe": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+{OTHERS}",
}
SPECIAL = re.compile(
    r"<\|[\w:]+\|>|<\|\w+>|<\w+\|>|<\uff5c[^\uff5c<>{}]+\uff5c>|</?s>|<(?:start|end)_of_turn>|</?seed:\w+>|"
    r"\]~!?b\[?\]?|\[/?(?:INST|THINK|ARGS|TOOL_CALLS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|gMASK|e~)\[?\]?|\[e~\["
)
ORDINARY = re.compile("</?(?:system|user|assistant)>")
# Kinds of values in GGUF files.
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
SPACE = "▁"
# Embeddings have a multiple of these rows.
ROWS = 64
BARE = "-bare"


def write(
    folder: Path, vocabulary: str | None, template: str | None, extra: tuple[str, ...] = (), size: int = VOCABULARY
) -> None:
    """Writes tokenizer and template into `folder`. `vocabulary`: the name of a ggml-vocab file, with BARE behind it if
    no space is put before texts; None: the default base's. `template`: the name of a file of llama.cpp's templates;
    None: the default base's. `extra`: special tokens. `size`: how many tokens of the default base's there are.
    """
    text = (TEMPLATES / f"{template}.jinja").read_text() if template else None
    if vocabulary is None:
        write_tokenizer(folder, size)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        config: dict[str, Any] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    else:
        tokenizer, config, size = _read(vocabulary, folder)
    present = {token["content"] for token in tokenizer["added_tokens"]} | set(tokenizer["model"]["vocab"])
    missing = sorted({*SPECIAL.findall(text or ""), *extra} - present)
    if tokenizer["model"]["byte_fallback"] and not (folder / "tokenizer.model").exists():
        # The converter writes the pieces alone, and needs as many as the embeddings have rows.
        missing += [f"<unused_{number}>" for number in range(-(size + len(missing)) % ROWS)]
        tokenizer["model"]["vocab"] |= {token: size + number for number, token in enumerate(missing)}
    for number, token in enumerate(missing):
        # Poolside's checkpoints call the marks of turns ordinary tokens.
        tokenizer["added_tokens"].append(_added(size + number, token, not ORDINARY.fullmatch(token)))
    if vocabulary == "phi-3":
        # Its control tokens take the spaces behind them.
        for token in tokenizer["added_tokens"]:
            token["rstrip"] = token["content"] not in ("<unk>", "<s>", "<|endoftext|>")
    if (folder / "tokenizer.model").exists():
        _add_pieces(folder / "tokenizer.model", missing)
    if text:
        (folder / "chat_template.jinja").write_text(text)
    else:
        text = (TOKENIZER / "chat_template.jinja").read_text()
        (folder / "chat_template.jinja").write_text(text)
    specials = [token["content"] for token in tokenizer["added_tokens"]]
    config |= {"tokenizer_class": "TokenizersBackend", "model_max_length": 2048}
    if end := _end_of_turn(text, specials, config):
        config["eos_token"] = config["pad_token"] = end
    if "<|turn>" in specials:
        # Its converter knows control tokens by this alone.
        config["extra_special_tokens"] = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


def size_of(folder: Path) -> int:
    """How many rows the embeddings of a written folder need."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    return -(-(max(ids) + 1) // ROWS) * ROWS


def end_token(folder: Path) -> int:
    """The id of the token that ends an answer in a written folder."""
    end = json.loads((folder / "tokenizer_config.json").read_text())["eos_token"]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return added[end] if end in added else tokenizer["model"]["vocab"][end]


def _end_of_turn(template: str, specials: list[str], config: dict[str, Any]) -> str | None:
    """The special token that ends the last answer; where there is none, the first behind an answer that another
    question follows.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "ANSWER"},
        {"role": "user", "content": "Bye."},
    ]
    tokens = {name: config.get(name, "") for name in ("bos_token", "eos_token")}
    rules = _compile_jinja_template(template)
    for count in (2, 3):
        rendered = rules.render(messages=messages[:count], add_generation_prompt=False, **tokens)
        rest = rendered.partition("ANSWER")[2].partition("Bye.")[0]
        if places := {rest.find(token): token for token in specials if token in rest}:
            return places[min(places)]
    return None


def _added(number: int, token: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": special}


def _read(vocabulary: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The content of tokenizer.json and tokenizer_config.json, and the number of tokens."""
    read = _fields(VOCABULARIES / f"ggml-vocab-{vocabulary.removesuffix(BARE)}.gguf")
    bare = vocabulary.endswith(BARE)
    tokens, kinds, family = read["tokens"], read["token_type"], read["model"]
    config = {
        f"{name}_token": tokens[read[f"{name}_token_id"]] for name in ("bos", "eos") if f"{name}_token_id" in read
    }
    if family != "gpt2":
        kept = [number for number, token in enumerate(tokens) if number < PIECES or len(token) == 1]
        tokens, kinds, scores = ([each[number] for number in kept] for each in (tokens, kinds, read["scores"]))
    if family == "llama":
        config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        _write_pieces(folder, tokens, kinds, scores, bare)
        merges = _merges_of(tokens, kinds, scores)
    else:
        merges = [merge.split(" ", 1) for merge in read["merges"]]
        if family == "gemma4":
            # Pieces with line feeds are merged of several, which are stored with spaces between them.
            known = set(tokens)
            merges = [pair for pair in merges if pair[0] in known and pair[1] in known and "".join(pair) in known]
    added = [
        _added(number, token, kind == CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    vocab = {token: number for number, token in enumerate(tokens)}
    if family == "gpt2":
        vocab = {token: number for token, number in vocab.items() if kinds[number] == NORMAL}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": family != "gpt2"}
    if family != "gpt2":
        model |= {"unk_token": "<unk>", "fuse_unk": True}
    return {"version": "1.0", "added_tokens": added, "model": model, **_steps(family, read, bare)}, config, len(tokens)


def _fields(file: Path) -> dict[str, Any]:
    """The fields of a GGUF file, without the part of their names before the last point. The library's own reader takes
    half a minute for a vocabulary.
    """
    data = file.read_bytes()
    place = 24

    def number(form: str) -> Any:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal place
        length = number("Q")
        place += length
        return data[place - length : place].decode("utf-8", "replace")

    def value(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind != ARRAY:
            return number(NUMBERS[kind])
        kind, length = number("I"), number("Q")
        return [value(kind) for _ in range(length)]

    fields = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        name = text().rpartition(".")[2]
        fields[name] = value(number("I"))
    return fields


def _steps(family: str, read: dict[str, Any], bare: bool) -> dict[str, Any]:
    """What the tokenizer does before and after it merges."""
    if family == "gpt2":
        pre = read["pre"]
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        split = {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False}
        return {
            "normalizer": {"type": "NFC"} if pre.startswith("qwen") else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    words = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [words, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if family == "llama" and bare:
        return {"normalizer": spaces, "decoder": {"type": "Sequence", "decoders": decoders}}
    if family == "llama":
        return {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, spaces]},
            "decoder": {
                "type": "Sequence",
                "decoders": [*decoders, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
            },
        }
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {"normalizer": spaces, "pre_tokenizer": split, "decoder": {"type": "Sequence", "decoders": decoders}}


def _merges_of(tokens: list[str], kinds: list[int], scores: list[float]) -> list[list[str]]:
    """The pairs that become a piece, those of better pieces first."""
    known = {token: score for token, kind, score in zip(tokens, kinds, scores, strict=True) if kind == NORMAL}
    pairs = [
        (score, [token[:cut], token[cut:]])
        for token, score in known.items()
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
    return [pair for _, pair in sorted(pairs, key=lambda item: -item[0])]


def _write_pieces(folder: Path, tokens: list[str], kinds: list[int], scores: list[float], bare: bool) -> None:
    """Writes tokenizer.model, which converters of some families read."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.add_dummy_prefix = not bare
    model.normalizer_spec.remove_extra_whitespaces = False
    for token, kind, score in zip(tokens, kinds, scores, strict=True):
        model.pieces.add(piece=token, type=kind, score=score)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())


def _add_pieces(file: Path, tokens: list[str]) -> None:
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    model.ParseFromString(file.read_bytes())
    for token in tokens:
        model.pieces.add(piece=token, type=CONTROL, score=0.0)
    file.write_bytes(model.SerializeToString())
