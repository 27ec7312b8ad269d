"""Adds a base of a GGUF file: `python -m trainer.cli.add_base gguf --id ID --source FILE --from TEXT --out DIR --node
NODE`, with the program of Node.

The engine must load and compute it. Writes `model.gguf` and `model.json`, and `hf/` where transformers reads weights
and tokenizer back as the engine does; without it the base can be served and not trained, and `model.json` says why
(`untrainable`).
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from trainer.cli.prepare_base import PRE_TOKENIZERS, complete_ends, restore_from_gguf, tokenizer_of
from trainer.run.engine import Engine
from trainer.runtime.files import sha256_of
from trainer.runtime.protocol import end_with_server


def described(file: Path) -> tuple[dict[str, Any], str]:
    """What `model.json` says of a GGUF file, and its tokenizer's name. Raises RuntimeError if the file is no base."""
    from trainer.runtime.gguf_reader import GgufReader

    reader = GgufReader(file)

    def field(name: str) -> object:
        return reader.fields[name].contents() if name in reader.fields else None

    architecture = field("general.architecture")
    if field("general.type") not in (None, "model") or architecture == "clip":
        raise RuntimeError("It is a part of a model, such as a projector or an adapter, and not a base.")
    if field("split.count") not in (None, 0, 1):
        raise RuntimeError("It is one of several parts; join them with llama-gguf-split first.")
    length = field(f"{architecture}.context_length")
    if not isinstance(length, int) or length < 1:
        raise RuntimeError(f"It does not say how long the context of its architecture ({architecture}) is.")
    embedding = field(f"{architecture}.pooling_type") in (1, 2, 3)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    facts = {"kind": "embedding" if embedding else "text", "parameters": parameters, "context_length": length}
    return facts, tokenizer_of(reader.fields)


def restore(out: Path, tokenizer: str) -> str | None:
    """Writes `hf/` of `model.gguf`. Returns why the base cannot be trained; None if it can."""
    if tokenizer not in PRE_TOKENIZERS:
        return f"transformers does not read the tokenizer '{tokenizer}' back from a GGUF file as the engine reads it"
    fresh = out / "hf"
    fresh.mkdir()
    try:
        restore_from_gguf(out / "model.gguf", fresh)
        complete_ends(fresh)
    except Exception as problem:
        shutil.rmtree(fresh)
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
        return f"transformers does not read its weights back from the GGUF file ({reason})"
    return None


def main() -> None:
    """Adds the file that the command line names. Raises RuntimeError with a reason for the user."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--from", dest="origin", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--node", type=Path, required=True)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    end_with_server()
    engine = Engine(args.node)
    # The reader of Python believes every length that a file names.
    try:
        engine.load(args.source)
        facts, tokenizer = described(args.source)
        if facts["kind"] == "text":
            engine.compute(args.source)
    except RuntimeError as problem:
        raise RuntimeError(f"The engine cannot serve {args.source.name}, or it is cut off: {problem}") from problem
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    shutil.copyfile(args.source, args.out / "model.gguf")
    untrainable = "it makes embeddings" if facts["kind"] == "embedding" else restore(args.out, tokenizer)
    model = {
        "id": args.id,
        "source": args.origin,
        **facts,
        "gguf": "model.gguf",
        "gguf_sha256": sha256_of(args.out / "model.gguf"),
        "hf": None if untrainable else "hf",
        **({"untrainable": untrainable} if untrainable else {}),
    }
    (args.out / "model.json").write_text(json.dumps(model, indent=2) + "\n")
    print(f"It can be served, but not trained: {untrainable}." if untrainable else "It can be served and trained.")
