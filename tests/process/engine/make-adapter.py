"""Writes a random LoRA adapter as GGUF: make-adapter.py GGUF_PY_FOLDER OUT SEED [WIDTH [LAYERS ARCHITECTURE]].

WIDTH is the model's embedding length; a different one than the base's makes an adapter of another base.
"""

import sys

sys.path.insert(0, sys.argv[1])
import numpy as np
from gguf import GGUFWriter

out, seed = sys.argv[2], int(sys.argv[3])
width = int(sys.argv[4]) if len(sys.argv) > 4 else 576
layers = int(sys.argv[5]) if len(sys.argv) > 5 else 30
architecture = sys.argv[6] if len(sys.argv) > 6 else "llama"
rank = 8
random = np.random.default_rng(seed)
writer = GGUFWriter(out, architecture)
writer.add_string("general.type", "adapter")
writer.add_string("adapter.type", "lora")
writer.add_float32("adapter.lora.alpha", 16.0)
for layer in range(layers):
    for name in ("attn_q", "attn_output"):
        a = random.normal(0, 0.05, (rank, width)).astype(np.float32)
        b = random.normal(0, 0.05, (width, rank)).astype(np.float32)
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a)
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", b)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
