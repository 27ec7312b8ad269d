"""Compares an exported GGUF with the merged folder, using the `gguf` package: `python read_exports.py GGUF FOLDER`.

Prints the file's metadata, and the largest difference of its weights from the folder's, relative to the largest weight
of each block of 32.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from gguf.quants import dequantize
from safetensors.torch import load_file

file, folder = Path(sys.argv[1]), Path(sys.argv[2])
reader = GGUFReader(file)
config = json.loads((folder / "config.json").read_text())
weights = {name: tensor.float().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}


def in_pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorders query and key rows as llama.cpp does: the two rows of a rotary pair are adjacent."""
    return matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def in_gguf(name: str) -> np.ndarray:
    if ".q_proj." in name:
        return in_pairs(weights[name], config["num_attention_heads"])
    return in_pairs(weights[name], config["num_key_value_heads"]) if ".k_proj." in name else weights[name]


names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
tensors = {tensor.name: tensor for tensor in reader.tensors}
largest_error = 0.0
for name in weights:
    tensor = tensors.pop(names.get_name(name, try_suffixes=(".weight",)))
    expected, found = in_gguf(name).reshape(-1, 32), dequantize(tensor.data, tensor.tensor_type).reshape(-1, 32)
    largest = np.abs(expected).max(axis=1, keepdims=True)
    largest_error = max(largest_error, float((np.abs(found - expected) / np.maximum(largest, 1e-12)).max()))
fields = ("general.architecture", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.tokens")
metadata = {name: reader.fields[name].contents() for name in fields}
metadata["tokenizer.ggml.tokens"] = len(metadata["tokenizer.ggml.tokens"])
print(
    json.dumps(
        {
            "apart": largest_error,
            "left": sorted(tensors),
            "types": sorted({t.tensor_type.name for t in reader.tensors}),
            **metadata,
        }
    )
)
