"""Tiny random checkpoints of today's model families, with the structure of the real ones: `python
tests/families/checkpoints.py OUT_DIR [NAME…]` writes those of these names, or all.

Each is what its family is known for: which layers attend to everything, to a window or to a state, which share keys,
where experts are, which tensors the real files have that transformers does not load. Sizes are the smallest that the
engine's converter and kernels take. Norms and biases are random, as the initial zeros and ones would hide mistakes.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from trainer.tests.make_tiny import VOCABULARY, write_tokenizer

Tensors = dict[str, torch.Tensor]

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
    "num_key_value_heads": 4,
}
# Granite's mixture of Mamba2 and attention without positions.
MAMBA = {
    "head_dim": 16,
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "shared_intermediate_size": 128,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
    "tie_word_embeddings": True,
}
# Layers of a gated delta rule, of which three precede one of full attention.
DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "full_attention_interval": 4,
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 16,
    "image_size": 64,
}


@dataclass(frozen=True)
class Family:
    """A checkpoint's class of transformers and its configuration's fields. `text`: those of the language model below a
    model that reads pictures. `added`: tensors of the real files that transformers does not load.
    """

    model: str
    config: dict[str, Any]
    text: dict[str, Any] | None = None
    added: Callable[[Tensors], Tensors] | None = None
    raw: dict[str, Any] = field(default_factory=dict)


def with_prediction_layer(prefix: str) -> Callable[[Tensors], Tensors]:
    """The tensors of Qwen's layer that predicts a second token: copies of the last layer's, below mtp."""

    def added(tensors: Tensors) -> Tensors:
        layers = {name.split(".layers.")[1].split(".")[0] for name in tensors if f"{prefix}layers." in name}
        last = f"{prefix}layers.{max(map(int, layers))}."
        copies = {
            f"mtp.layers.0.{name.removeprefix(last)}": value.clone()
            for name, value in tensors.items()
            if name.startswith(last)
        }
        width = tensors[f"{prefix}norm.weight"].shape[0]
        return copies | {
            "mtp.fc.weight": torch.randn(width, 2 * width) * 0.02,
            "mtp.norm.weight": torch.randn(width) * 0.1,
            "mtp.pre_fc_norm_embedding.weight": torch.randn(width) * 0.1,
            "mtp.pre_fc_norm_hidden.weight": torch.randn(width) * 0.1,
        }

    return added


def with_extra_layer(tensors: Tensors) -> Tensors:
    """The tensors of GLM's and DeepSeek's layer that predicts a second token: one more than num_hidden_layers."""
    count = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    last = f"model.layers.{count - 1}."
    width = tensors["model.norm.weight"].shape[0]
    copies = {
        f"model.layers.{count}.{name.removeprefix(last)}": value.clone()
        for name, value in tensors.items()
        if name.startswith(last)
    }
    return copies | {
        f"model.layers.{count}.eh_proj.weight": torch.randn(width, 2 * width) * 0.02,
        f"model.layers.{count}.enorm.weight": torch.ones(width),
        f"model.layers.{count}.hnorm.weight": torch.ones(width),
        f"model.layers.{count}.shared_head.norm.weight": torch.ones(width),
    }


def windows(*kinds: str) -> dict[str, Any]:
    """Layers by a letter each: S attends to a window, F to everything."""
    names = {"S": "sliding_attention", "F": "full_attention"}
    return {"layer_types": [names[kind] for kind in kinds], "num_hidden_layers": len(kinds), "sliding_window": 16}


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES = {
    "llama": Family("LlamaForCausalLM", {}),
    "qwen2_5": Family("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": Family("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", {**EXPERTS, "decoder_sparse_step": 1, "norm_topk_prob": True}),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 64, "partial_rotary_factor": 0.25},
        added=with_prediction_layer("model."),
    ),
    "qwen3_5": Family(
        "Qwen3_5ForConditionalGeneration",
        {"vision_config": {**VISION, "out_hidden_size": 64, "deepstack_visual_indexes": []}},
        text={**DELTA, "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.25}, "mtp_num_hidden_layers": 1},
        added=with_prediction_layer("model.language_model."),
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        {
            **DELTA,
            "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": True,
            "mtp_num_hidden_layers": 1,
        },
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForConditionalGeneration",
        {"vision_config": {**VISION, "out_hidden_size": 64, "deepstack_visual_indexes": []}},
        text={
            **EXPERTS,
            **DELTA,
            "shared_expert_intermediate_size": 64,
            "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.25},
            "mtp_num_hidden_layers": 1,
        },
        added=with_prediction_layer("model.language_model."),
    ),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        {"vision_config": {**VISION, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}},
        text={"rope_parameters": {**SECTIONS, "mrope_section": [6, 5, 5]}},
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoeForConditionalGeneration",
        {"vision_config": {**VISION, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}},
        text={**EXPERTS, "decoder_sparse_step": 1, "rope_parameters": {**SECTIONS, "mrope_section": [6, 5, 5]}},
    ),
    "gemma3": Family("Gemma3ForCausalLM", {**windows(*"SF"), "tie_word_embeddings": True, "query_pre_attn_scalar": 32}),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        {
            **windows(*"SSFSSF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_kv_shared_layers": 2,
            "altup_num_inputs": 4,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
            "intermediate_size": [128] * 6,
        },
    ),
    "gemma4_e2b": Family(
        "Gemma4ForCausalLM",
        {
            **windows(*"SSFSSF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "global_head_dim": 64,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4_moe": Family(
        "Gemma4ForCausalLM",
        {
            **windows(*"SF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "global_head_dim": 64,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4_31b": Family(
        "Gemma4ForCausalLM",
        {
            **windows(*"SF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "global_head_dim": 64,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gpt_oss": Family("GptOssForCausalLM", {**windows(*"SF"), "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": Family(
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 128,
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 1, 1, 0],
        },
    ),
    "muse_glimmer": Family("MuseGlimmerForConditionalGeneration", {"vision_config": VISION}, text={**windows(*"SSSF")}),
    "ministral3": Family("Ministral3ForCausalLM", {"rope_parameters": YARN}),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration",
        {"vision_config": {"model_type": "pixtral", **VISION}},
        text={"model_type": "ministral3", "rope_parameters": YARN},
    ),
    "mistral4": Family(
        "Mistral3ForConditionalGeneration",
        {"vision_config": {"model_type": "pixtral", **VISION}},
        text={
            **LATENT,
            "model_type": "mistral4",
            "head_dim": 48,
            "rope_parameters": YARN,
            "q_lora_rank": 32,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
        },
    ),
    "glm4": Family("Glm4ForCausalLM", {}),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        {
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 1,
        },
        added=with_extra_layer,
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM",
        {
            **LATENT,
            "q_lora_rank": 32,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "num_nextn_predict_layers": 1,
        },
        added=with_extra_layer,
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": None,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "phi3": Family("Phi3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
    "smollm3": Family("SmolLM3ForCausalLM", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        {"tie_word_embeddings": True, "head_dim": 16, "layer_types": ["conv", "full_attention"], "block_ff_dim": 128},
    ),
    "lfm2_moe": Family(
        "Lfm2MoeForCausalLM",
        {
            **EXPERTS,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "use_expert_bias": True,
        },
    ),
    "granite": Family("GraniteForCausalLM", {"logits_scaling": 4.0, "residual_multiplier": 0.5, "head_dim": 16}),
    "granite_h": Family(
        "GraniteMoeHybridForCausalLM",
        {
            **MAMBA,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
        },
    ),
    "granite_h_moe": Family(
        "GraniteMoeHybridForCausalLM",
        {
            **MAMBA,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 64,
        },
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            "num_hidden_layers": 4,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 128,
            "n_groups": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "moe_shared_expert_intermediate_size": 64,
            "n_shared_experts": 1,
        },
    ),
    "olmo3": Family("Olmo3ForCausalLM", {**windows(*"SF"), "head_dim": 16}),
    "ernie4_5": Family("Ernie4_5ForCausalLM", {"tie_word_embeddings": True}),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        {
            "head_dim": 16,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 64,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
        },
    ),
    "hunyuan": Family("HunYuanDenseV1ForCausalLM", {"tie_word_embeddings": True}),
    "exaone4": Family("Exaone4ForCausalLM", {**windows(*"SSSF"), "sliding_window_pattern": "LLLG", "head_dim": 16}),
    "seed_oss": Family("SeedOssForCausalLM", {}),
    "minimax_m2": Family("MiniMaxM2ForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16}),
    "laguna": Family("LagunaForCausalLM", {**EXPERTS, **windows(*"FS"), "shared_expert_intermediate_size": 64}),
    "mistral": Family("MistralForCausalLM", {}),
}


def write(name: str, folder: Path, seed: int = 0) -> None:
    """Writes the checkpoint of a family. The same seed gives the same weights."""
    family = FAMILIES[name]
    model_class = getattr(transformers, family.model)
    fields = {**TEXT, **family.config} if family.text is None else dict(family.config)
    if family.text is not None:
        fields["text_config"] = {**TEXT, **family.text}
        fields["tie_word_embeddings"] = fields["text_config"]["tie_word_embeddings"]
    config = model_class.config_class(**fields)
    torch.manual_seed(seed)
    model = model_class(config).to(torch.bfloat16)
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            around = float("norm" in parameter_name and bool(parameter.abs().mean() > 0.5))
            torch.nn.init.normal_(parameter, mean=around, std=0.1)
    for buffer_name, buffer in model.named_buffers():
        if "bias" in buffer_name:
            torch.nn.init.normal_(buffer, std=0.1)
    model.save_pretrained(folder)
    if family.added:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        save_file(tensors | family.added(tensors), file, {"format": "pt"})
    write_tokenizer(folder, VOCABULARY)


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    failed = {}
    for chosen in names or FAMILIES:
        try:
            write(chosen, Path(out) / chosen)
        except Exception as problem:
            failed[chosen] = f"{type(problem).__name__}: {problem}"[:300]
    print(json.dumps(failed, indent=1))
    sys.exit(1 if failed else 0)
