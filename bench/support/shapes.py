"""Checkpoints of the shapes of published models, with random weights: `python -m bench.support.shapes NAME OUT`. Speed
does not depend on what a model has learned. Their tokenizer is the default base's; Gemma's, whose converter reads no
other, is that of the second real base (`node scripts/setup.mjs --with gemma3`).

A name of tests/families/checkpoints.py gives that family's structure in the widths of a small model.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.families.checkpoints import FAMILIES
from tests.families.checkpoints import TEXT as TINY
from trainer.tests.make_tiny import TOKENIZER_FILES, VOCABULARY, write_tokenizer

GEMMA = Path(__file__).parents[2] / ".local/peers/gemma3/google/gemma-3-270m/hf"
# A class of transformers and its configuration.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-0.6b": (
        "Qwen3ForCausalLM",
        {
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_theta": 1_000_000,
        },
    ),
    "qwen3-4b": (
        "Qwen3ForCausalLM",
        {
            "vocab_size": 151_936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_theta": 1_000_000,
        },
    ),
    "gemma3-1b": (
        "Gemma3ForCausalLM",
        {
            "vocab_size": 262_144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
            "layer_types": [f"{'full' if (layer + 1) % 6 == 0 else 'sliding'}_attention" for layer in range(26)],
        },
    ),
    "qwen3.5-0.8b": (
        "Qwen3_5ForCausalLM",
        {
            "vocab_size": 248_320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": [f"{'full' if (layer + 1) % 4 == 0 else 'linear'}_attention" for layer in range(24)],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
            },
        },
    ),
    # No published model is as small: eight experts, of which a token uses two.
    "mixture-8x": (
        "Qwen3MoeForCausalLM",
        {
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "rope_theta": 1_000_000,
        },
    ),
}
# How many times as large as in the tiny checkpoint of a family: a model of width 1024 and at least eight layers.
WIDER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "intermediate_size_mlp": 16,
    "block_ff_dim": 24,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "moe_shared_expert_intermediate_size": 8,
    "shared_intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 4,
    "head_dim": 2,
    "global_head_dim": 2,
    "query_pre_attn_scalar": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 2,
    "v_head_dim": 2,
    "num_experts": 2,
    "n_routed_experts": 2,
    "num_local_experts": 2,
    "moe_num_experts": 2,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_d_head": 4,
    "mamba_head_dim": 4,
    "mamba_d_state": 4,
    "hidden_size_per_layer_input": 4,
    "laurel_rank": 4,
    "rotary_dim": 2,
    "sliding_window": 32,
    "attention_chunk_size": 32,
}
LEAST_LAYERS = 8
# A field for each layer.
BY_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "no_rope_layers", "activation_sparsity_pattern")


def wide(family: str) -> tuple[str, dict[str, Any]]:
    """The class and configuration of a family's text model, with its pattern of layers repeated."""
    made = FAMILIES[family]
    if made.text is not None:
        raise SystemExit(f"{family} reads pictures: its text model has a name of its own in the list.")
    fields = {**TINY, **made.config}
    layers = fields["num_hidden_layers"]
    repeats = -(-LEAST_LAYERS // layers)
    fields["num_hidden_layers"] = layers * repeats
    for name, value in fields.items():
        if name in BY_LAYER:
            fields[name] = value * repeats
        elif isinstance(value, list):
            fields[name] = [number * WIDER[name] for number in value] * repeats
        elif name in WIDER and value:
            fields[name] = value * WIDER[name]
    del fields["max_position_embeddings"], fields["tie_word_embeddings"]
    return made.model, {**fields, "vocab_size": 49_152}


def write(name: str, folder: Path) -> None:
    """Writes the checkpoint in bfloat16, as one file."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    kind, fields = SHAPES.get(name) or wide(name)
    model_class = getattr(transformers, kind)
    gemma = kind.startswith("Gemma3") and name in SHAPES
    if gemma and not GEMMA.exists():
        raise SystemExit("Gemma's tokenizer is missing: run `node scripts/setup.mjs --with gemma3`.")
    bos, eos, pad = (2, 1, 0) if gemma else (1, 2, 2)
    ends = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    config = model_class.config_class(**fields, **ends, max_position_embeddings=40_960, tie_word_embeddings=True)
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    model_class(config).to(torch.bfloat16).save_pretrained(folder)
    if gemma:
        for file in TOKENIZER_FILES:
            shutil.copyfile(GEMMA / file, folder / file)
    else:
        write_tokenizer(folder, VOCABULARY)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
