"""Writes zips of an adapter, valid and broken ones: `python -m tests.support.adapter_zips ADAPTER_FOLDER OUT`."""

import json
import struct
import sys
import zipfile
from pathlib import Path

from safetensors.torch import load, save


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "adapter_config.json").read_text())
    weights = (folder / "adapter_model.safetensors").read_bytes()
    tensors = load(weights)
    first = next(iter(tensors))

    def make(name: str, files: dict[str, bytes | str]) -> None:
        with zipfile.ZipFile(out / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as made:
            for path, content in files.items():
                made.writestr(path, content)

    def adapter(weights: bytes = weights, **changes) -> dict[str, bytes | str]:
        return {"my/adapter_config.json": json.dumps({**config, **changes}), "my/adapter_model.safetensors": weights}

    header_length = struct.unpack("<Q", weights[:8])[0]
    make("good", {**adapter(), "my/README.md": "hello"})
    make("nobase", adapter(base_model_name_or_path="someone/other"))
    make("pickle", {"adapter_config.json": json.dumps(config), "adapter_model.bin": b"\x80\x04."})
    make("rank", adapter(r=config["r"] * 2))
    make("dora", adapter(use_dora=True))
    make("alora", adapter(alora_invocation_tokens=[1, 2]))
    make("corda", adapter(init_lora_weights="corda"))
    make("empty", adapter(modules_to_save=[], trainable_token_indices=None, rank_pattern={}, alpha_pattern=None))
    make("layer", adapter(save({name.replace("layers.0", "layers.99"): tensor for name, tensor in tensors.items()})))
    make("other", adapter(save({"base_model.model.classifier.weight": tensors[first]})))
    make("proto", adapter(save({**tensors, "__proto__": tensors[first].clone()})))
    make("nan", adapter(save({name: tensor * float("nan") for name, tensor in tensors.items()})))
    make("huge", adapter(save({name: tensor * 0 + 1e30 for name, tensor in tensors.items()})))
    make("cut", adapter(weights[:-100]))
    make("header", adapter(struct.pack("<Q", 1 << 60) + weights[8:]))
    make(
        "offsets",
        adapter(
            weights[:8]
            + weights[8 : 8 + header_length].replace(b'"data_offsets":[0,', b'"data_offsets":[8,')
            + weights[8 + header_length :]
        ),
    )
    make("bomb", {**adapter(), "my/adapter_model.safetensors": bytes(50_000_000)})
    make("twice", {**adapter(), "adapter_config.json": "{}"})
    make("json", {**adapter(), "my/adapter_config.json": "[" * 100_000})
    (out / "nothing.zip").write_bytes(b"no zip at all")


if __name__ == "__main__":
    main()
