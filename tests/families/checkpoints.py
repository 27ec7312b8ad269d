"""Tiny random checkpoints of today's model families, with the structure of the real ones: `python
tests/families/checkpoints.py OUT_DIR [NAME…]` writes those of these names, or all.

Each is what its family is known for: which layers attend to everything, to a window or to a state, which share keys,
where experts are, which tensors the real files have that transformers does not load. Sizes are the smallest that the
engine's converter and kernels take. Norms and biases are random, as the initial zeros and ones would hide mistakes.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.families import quantized, vocabularies
from trainer.tests.make_tiny import SMALL_VOCABULARY, VOCABULARY

Tensors = dict[str, torch.Tensor]

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
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
# The converter names the projectors' layers after those of the tower: of three, as there are two.
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 16,
    "image_size": 64,
}

PICTURES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 1024,
    "max_pixels": 65536,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"shortest_edge": 1024, "longest_edge": 65536},
}


@dataclass(frozen=True)
class Family:
    """A checkpoint's class of transformers and its configuration's fields. `text`: those of the language model below a
    model that reads pictures. `added`: tensors of the real files that transformers does not load, or turns as it loads
    them. `raw`: fields of the real files that transformers does not write. `served`: sizes that the engine's library
    has for all sizes of the family. `quantized`: brings the weights into the form of the real files. `published`: adds
    the parts of the real files that transformers cannot load here.
    """

    model: str
    config: dict[str, Any]
    text: dict[str, Any] | None = None
    added: Callable[[Tensors], Tensors] | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    served: dict[str, Any] = field(default_factory=dict)
    quantized: Callable[[Path], None] | None = None
    published: Callable[[Path], None] | None = None


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


def with_shared_keys(tensors: Tensors) -> Tensors:
    """The keys and values of layers that use those of others, which the real files have nevertheless."""
    pattern = re.compile(r"(.*\.layers\.)(\d+)(\.self_attn\.)q_proj\.weight")
    added = {}
    for match in filter(None, map(pattern.fullmatch, tensors)):
        prefix, number, middle = match.groups()
        for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
            if f"{prefix}{number}{middle}{name}" not in tensors:
                added[f"{prefix}{number}{middle}{name}"] = tensors[f"{prefix}0{middle}{name}"].clone()
    return added


def beside_other_parts(folder: Path) -> None:
    """Makes a checkpoint of Gemma 3n's language model one as it is published, with parts that see and hear. They have a
    tensor each: transformers has the tower from a package that the service does not install.
    """
    file = folder / "model.safetensors"
    published = {
        f"model.language_model.{name.removeprefix('model.')}": value for name, value in load_file(file).items()
    }
    parts = ("vision_tower.timm_model.conv_stem.conv", "audio_tower.layer", "embed_vision.norm", "embed_audio.norm")
    save_file(published | {f"model.{part}.weight": torch.ones(4) for part in parts}, file, {"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    config = transformers.Gemma3nConfig(text_config=text).to_dict()
    config |= {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(PICTURES))


def with_turned_experts(tensors: Tensors) -> Tensors:
    """Stacked experts as the real files have them, [experts, inputs, outputs]; transformers saves them turned."""
    return {name: value.mT.contiguous() for name, value in tensors.items() if ".mlp.experts." in name}


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

GEMMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 16,
    "position_embedding_size": 64,
}
GEMMA4_AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "output_proj_dims": 32,
    "subsampling_conv_channels": [8, 8],
}
FAMILIES = {
    "llama": Family("LlamaForCausalLM", {}),
    "qwen2_5": Family("Qwen2ForCausalLM", {"tie_word_embeddings": True, "head_dim": 16}),
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
        text={
            **EXPERTS,
            "moe_intermediate_size": 96,
            "decoder_sparse_step": 1,
            "rope_parameters": {**SECTIONS, "mrope_section": [6, 5, 5]},
        },
        added=with_turned_experts,
    ),
    "gemma3": Family("Gemma3ForCausalLM", {**windows(*"SF"), "tie_word_embeddings": True, "query_pre_attn_scalar": 32}),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        {
            **windows(*"SSFSSF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 2,
            "altup_num_inputs": 4,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
            "intermediate_size": [128] * 6,
        },
        # 20 layers with keys of their own, sparsity in 10.
        served={
            **windows(*"SSSSF" * 5),
            "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 5,
            "laurel_rank": 64,
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
            "intermediate_size": [128] * 25,
        },
        added=with_shared_keys,
        published=beside_other_parts,
    ),
    "gemma4_e2b": Family(
        "Gemma4ForConditionalGeneration",
        {"vision_config": GEMMA4_VISION, "audio_config": GEMMA4_AUDIO},
        text={
            **windows(*"SSFSSF"),
            "tie_word_embeddings": True,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "global_head_dim": 64,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4_moe": Family(
        "Gemma4ForConditionalGeneration",
        {"vision_config": GEMMA4_VISION, "audio_config": None},
        text={
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
        "Gemma4ForConditionalGeneration",
        {"vision_config": GEMMA4_VISION, "audio_config": None},
        text={
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
        "Llama4ForConditionalGeneration",
        {
            "vision_config": {
                **VISION,
                # Four neighbours are one vector.
                "intermediate_size": 128,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "vision_output_dim": 32,
            }
        },
        text={
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 128,
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 1, 1, 0],
        },
        served={"attention_chunk_size": 8192},
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
        raw={"first_k_dense_replace": 1},
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": 32,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "phi3": Family(
        "Phi3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": True, "original_max_position_embeddings": 2048}
    ),
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
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
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
    "exaone4": Family(
        "Exaone4ForCausalLM",
        {**windows(*"SSSF"), "sliding_window_pattern": "LLLG", "head_dim": 16},
        # Windows in 64 layers alone.
        served={"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 4},
    ),
    "seed_oss": Family("SeedOssForCausalLM", {}),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16},
        raw={"scoring_func": "sigmoid"},
    ),
    "laguna": Family("LagunaForCausalLM", {**EXPERTS, **windows(*"FS"), "shared_expert_intermediate_size": 64}),
    "mistral": Family("MistralForCausalLM", {}),
}
# Families whose real files have quantized weights: transformers reads them after the service has added them.
QUANTIZED = {
    "qwen3_fp8": replace(FAMILIES["qwen3"], quantized=quantized.fp8_of_blocks),
    "llama_fp8": replace(FAMILIES["llama"], quantized=quantized.fp8_of_rows),
    "ministral3_fp8": replace(FAMILIES["ministral3"], quantized=quantized.fp8_of_tensors),
    "gpt_oss_mxfp4": replace(FAMILIES["gpt_oss"], quantized=quantized.mxfp4_experts),
}

# Vocabulary and template of vocabularies.py; the default base's where there is none, or where another family has its
# vocabulary: large ones take most of the time.
WORDS: dict[str, tuple[str | None, str | None]] = {
    "llama": ("llama-bpe", "meta-llama-Llama-3.2-3B-Instruct"),
    "qwen2_5": ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
    "qwen3": ("qwen2", "Qwen-Qwen3-0.6B"),
    "qwen3_moe": ("qwen2", "Qwen3-Coder"),
    "qwen3_next": ("qwen2", "Qwen-Qwen3-0.6B"),
    "qwen3_5": ("qwen35", "Qwen3.5-4B"),
    "qwen3_5_text": (None, "Qwen3.5-4B"),
    "qwen3_5_moe": ("qwen35", "Qwen3.5-4B"),
    "qwen3_vl": ("qwen2", "Qwen3.5-4B"),
    "qwen3_vl_moe": ("qwen2", "Qwen3.5-4B"),
    "gemma3": ("llama-spm-bare", "google-gemma-2-2b-it"),
    "gemma3n": ("llama-spm-bare", "google-gemma-2-2b-it"),
    "gemma4_e2b": ("gemma-4", "google-gemma-4-31B-it"),
    "gemma4_moe": ("gemma-4", "google-gemma-4-31B-it"),
    "gemma4_31b": ("gemma-4", "google-gemma-4-31B-it"),
    "gpt_oss": (None, "openai-gpt-oss-120b"),
    "llama4": (None, "meta-llama-Llama-3.3-70B-Instruct"),
    "muse_glimmer": (None, "muse-glimmer"),
    "ministral3": (None, "mistralai-Ministral-3-14B-Reasoning-2512"),
    "mistral3": (None, "mistralai-Ministral-3-14B-Reasoning-2512"),
    "mistral4": (None, "mistralai-Ministral-3-14B-Reasoning-2512"),
    "glm4": (None, "GLM-4.6"),
    "glm4_moe": (None, "GLM-4.6"),
    "glm4_moe_lite": (None, "GLM-4.7-Flash"),
    "deepseek_v3": (None, "deepseek-ai-DeepSeek-V3.1"),
    "phi3": ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
    "smollm3": (None, "HuggingFaceTB-SmolLM3-3B"),
    "lfm2": (None, "LFM2.5-Instruct"),
    "lfm2_moe": (None, "LFM2-8B-A1B"),
    "granite": (None, "ibm-granite-granite-3.3-2B-Instruct"),
    "granite_h": (None, "ibm-granite-granite-4.0"),
    "granite_h_moe": (None, "ibm-granite-granite-4.1"),
    "nemotron_h": (None, "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    "ernie4_5": ("llama-spm", None),
    "ernie4_5_moe": ("llama-spm", None),
    "seed_oss": (None, "ByteDance-Seed-OSS"),
    "minimax_m2": (None, "MiniMax-M2"),
    "laguna": (None, "poolside-Laguna-XS.2"),
    "mistral": (None, "mistralai-Mistral-Nemo-Instruct-2407"),
}
# Tokens of the real vocabularies that a converter or the library asks for, or that have another form than others.
TOKENS = {name: ("[gMASK]", "<|endoftext|>") for name in ("glm4", "glm4_moe", "glm4_moe_lite")} | {
    name: ("[IMG]", "[IMG_BREAK]", "[IMG_END]") for name in ("mistral3", "mistral4")
}
TOKENS["muse_glimmer"] = ("<|image_start|>", "<|patch|>", "<|image_end|>")
TOKENS |= {name: ("<|image>", "<|image|>", "<image|>") for name in ("gemma4_e2b", "gemma4_moe", "gemma4_31b")}
TOKENS["llama4"] = ("<|image_start|>", "<|image|>", "<|patch|>", "<|image_end|>")
TOKENS["phi3"] = ("<|endoftext|>",)
TOKENS["laguna"] = ("〈|EOS|〉", "<system>", "</system>", "<user>", "</user>", "<assistant>", "</assistant>")


def write(name: str, folder: Path, seed: int = 0, as_served: bool = False, tokens: int | None = None) -> None:
    """Writes the checkpoint of a family. The same seed gives the same weights. `as_served`: as the engine's library
    wants it, with the real vocabulary and template where there are any; without, it is made in a second. `tokens`: how
    many there are of a vocabulary that is the default base's.
    """
    family = (FAMILIES | QUANTIZED)[name]
    folder.mkdir(parents=True, exist_ok=True)
    # A quantized form has the vocabulary of its family.
    named = name.removesuffix("_fp8").removesuffix("_mxfp4")
    words, extra = (WORDS.get(named, (None, None)), TOKENS.get(named, ())) if as_served else ((None, None), ())
    vocabularies.write(folder, *words, extra, tokens or (VOCABULARY if as_served else SMALL_VOCABULARY))
    size = vocabularies.size_of(folder)
    ids = dict.fromkeys(("eos_token_id", "pad_token_id"), vocabularies.end_token(folder))
    model_class = getattr(transformers, family.model)
    common = {**TEXT, "vocab_size": size, "vocab_size_per_layer_input": size, "bos_token_id": 1, **ids}
    served = family.served if as_served else {}
    fields = {**common, **family.config, **served} if family.text is None else {**family.config}
    if family.text is not None:
        fields["text_config"] = {**common, **family.text, **served}
        fields["tie_word_embeddings"] = fields["text_config"]["tie_word_embeddings"]
        (folder / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    config = model_class.config_class(**fields)
    torch.manual_seed(seed)
    model = model_class(config).to(torch.bfloat16)
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            around = float("norm" in parameter_name and bool(parameter.abs().mean() > 0.5))
            torch.nn.init.normal_(parameter, mean=around, std=0.1)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            # The token that ends answers, which real models have learned.
            torch.nn.init.normal_(module.weight.data[module.padding_idx], std=0.02)
    for buffer_name, buffer in model.named_buffers():
        if "bias" in buffer_name:
            torch.nn.init.normal_(buffer, std=0.1)
        elif buffer_name.endswith(("_min", "_max")):
            # Real models have bounds that are numbers.
            buffer.fill_(30 if buffer_name.endswith("max") else -30)
    model.save_pretrained(folder)
    if family.raw:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | family.raw, indent=1))
    if family.added:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        save_file(tensors | family.added(tensors), file, {"format": "pt"})
    if family.quantized:
        family.quantized(folder)
    if family.published and as_served:
        family.published(folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(json.dumps([*FAMILIES, *QUANTIZED]))
        sys.exit()
    out, *names = sys.argv[1:]
    failed = {}
    for chosen in names or FAMILIES | QUANTIZED:
        try:
            write(chosen, Path(out) / chosen, as_served=True)
        except Exception as problem:
            failed[chosen] = f"{type(problem).__name__}: {problem}"[:300]
    print(json.dumps(failed, indent=1))
    sys.exit(1 if failed else 0)
