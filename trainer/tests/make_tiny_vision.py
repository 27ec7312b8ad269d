"""Writes a tiny vision-language checkpoint for tests: `python -m trainer.tests.make_tiny_vision FAMILY OUT_DIR`.

With `--gguf CONVERTERS` it writes `hf/` in OUT_DIR, and beside it `model.gguf` and `mmproj-model.gguf` in float32, and
`mmproj-model-f16.gguf`.

FAMILY is `smolvlm` or `idefics3` (pictures in tiles of 64 pixels, 4 tokens each, and an overview), `qwen2_5_vl`
(pictures of any size, a token for 16 by 16 pixels, multimodal rotary positions), `qwen3_vl` (the same, with more
vectors for the first layers) or `gemma3` (pictures of 128 by 128 pixels, 16 tokens that attend to each other, layers
with a sliding window). Random weights, text part of few layers and hidden size 64, the default model's tokenizer with
the family's tokens for pictures, chat template and image processor.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from trainer.runtime.process import importing
from trainer.tests.make_tiny import TEXT, VOCABULARY, write_tokenizer

# As in HuggingFaceTB/SmolVLM-256M-Instruct, Qwen/Qwen2.5-VL-3B-Instruct, Qwen/Qwen3-VL-2B-Instruct and
# google/gemma-3-4b-it.
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN3_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TEMPLATE = QWEN3_TEMPLATE.replace(
    "%}",
    "%}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}",
    1,
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}"
    "{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}"
    "{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}"
    "{%- set loop_messages = messages[1:] -%}{%- else -%}"
    "{%- set first_user_prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}"
    "{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}{%- else -%}"
    "{%- set role = message['role'] -%}{%- endif -%}"
    "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}"
    "{%- else -%}{{ raise_exception('Invalid content type') }}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)


def make_tiny_vision(family: str, folder: Path, seed: int = 0, vocabulary: int = VOCABULARY, **sizes: dict) -> Path:
    """Writes the checkpoint into `folder` and returns it. The same seed gives the same weights. `sizes`: other settings
    of the parts `text`, `vision` and `processor`. With a smaller `vocabulary` its tokenizer has these tokens of the
    default one alone: all is faster, but llama.cpp's converter refuses it.

    Raises KeyError for an unknown family.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    make = {
        "smolvlm": partial(_smolvlm, "SmolVLM"),
        "idefics3": partial(_smolvlm, "Idefics3"),
        "qwen2_5_vl": _qwen2_5_vl,
        "qwen3_vl": _qwen3_vl,
        "gemma3": _gemma3,
    }[family]
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, vocabulary)
    torch.manual_seed(seed)
    model, template, processor = make(folder, **sizes)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "layernorm.weight", "norm1.weight", "norm2.weight", "ln_q.weight")):
            # The initial zeros and ones would hide mistakes in their use.
            from_zero = "bias" in name or (family == "gemma3" and "vision" not in name)
            torch.nn.init.normal_(parameter, mean=float(not from_zero), std=0.1)
        elif any(part in name for part in ("visual", "vision", "connector", "multi_modal")):
            # Wide enough that two pictures give different answers.
            torch.nn.init.normal_(parameter, std=0.2)
        elif name.endswith("embed_tokens.weight"):
            # Not zero for the padding token, which templates use to end a message; and large beside the epsilon of
            # the norms, which the engine's library takes for 0 in Qwen2.5-VL.
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    if family == "gemma3":
        _as_published(folder / "model.safetensors")
    (folder / "chat_template.jinja").write_text(template)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))
    return folder


def _as_published(file: Path) -> None:
    """Names the tower's weights as google/gemma-3-4b-it does: llama.cpp's converter knows no others, and transformers
    writes shorter ones.
    """
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    tower = "vision_tower."
    named = {name.replace(tower, f"{tower}vision_model.", 1): weight for name, weight in weights.items()}
    save_file(named, file, {"format": "pt"})


def _tokenizer(folder: Path, tokens: list[str], eos: str | None = None, **named: str):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **({"extra_special_tokens": named} if named else {}))
    tokenizer.add_special_tokens({"additional_special_tokens": tokens, **({"eos_token": eos} if eos else {})})
    tokenizer.save_pretrained(folder)
    return tokenizer


def _smolvlm(name: str, folder: Path, **sizes: dict):
    import transformers

    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    end = "<end_of_utterance>"
    tokenizer = _tokenizer(folder, ["<fake_token_around_image>", "<image>", "<global-img>", end, *rows], end)
    eos = tokenizer.convert_tokens_to_ids(end)
    text = {
        **TEXT,
        "model_type": "llama",
        "architectures": ["VLlama3ForCausalLM"],
        "vocab_size": len(tokenizer),
        "eos_token_id": eos,
        **sizes.get("text", {}),
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 8,
        **sizes.get("vision", {}),
    }
    config = getattr(transformers, f"{name}Config")(
        text_config=text,
        vision_config=vision,
        scale_factor=4,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
        eos_token_id=eos,
        pad_token_id=2,
    )
    processor = {
        "image_processor_type": f"{name}ImageProcessor",
        "processor_class": f"{name}Processor",
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": 64},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 128},
        **sizes.get("processor", {}),
    }
    tile_tokens = (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": f"{name}Processor", "image_seq_len": tile_tokens}, indent=2)
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), SMOLVLM_TEMPLATE, processor


QWEN_TOWER = {
    # The converter wants more blocks than the merger has layers.
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "merge_size": 2,
    "patch_size": 8,
    "temporal_patch_size": 2,
    "resample": 3,
    "rescale_factor": 1 / 255,
}


def _qwen_shared(folder: Path) -> tuple[int, dict]:
    """Adds the tokens of a Qwen-VL to the tokenizer. Returns its size, and the settings that such models share."""
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer = _tokenizer(folder, names)
    start, end, image, video = tokenizer.convert_tokens_to_ids(names)
    return len(tokenizer), {
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "image_token_id": image,
        "video_token_id": video,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _qwen2_5_vl(folder: Path, **sizes: dict):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vocab_size, shared = _qwen_shared(folder)
    text = {
        **TEXT,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        # Sections of a head's 8 pairs for time, height and width.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        **sizes.get("text", {}),
    }
    vision = {
        # The converter wants every n-th block with full attention.
        **QWEN_TOWER,
        # The engine's library knows no other.
        "window_size": 112,
        "fullatt_block_indexes": [1, 3],
        **sizes.get("vision", {}),
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        **shared,
    )
    processor = {
        **QWEN_PROCESSOR,
        "processor_class": "Qwen2_5_VLProcessor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        # The limits of the engine's library: 8 to 4096 tokens a picture.
        "min_pixels": 8 * 16 * 16,
        "max_pixels": 4096 * 16 * 16,
        **sizes.get("processor", {}),
    }
    return Qwen2_5_VLForConditionalGeneration(config), QWEN_TEMPLATE, processor


def _qwen3_vl(folder: Path, **sizes: dict):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    vocab_size, shared = _qwen_shared(folder)
    text = {
        **TEXT,
        # More than the layers that get vectors: the engine's library takes none in the last one.
        "num_hidden_layers": 3,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            # Taken in turns, so that each is as long as its turns are: else the engine's library rotates some pairs by
            # no position.
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        **sizes.get("text", {}),
    }
    vision = {
        **QWEN_TOWER,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2],
        **sizes.get("vision", {}),
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        **shared,
    )
    processor = {
        **QWEN_PROCESSOR,
        "processor_class": "Qwen3VLProcessor",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 8 * 16 * 16, "longest_edge": 4096 * 16 * 16},
        **sizes.get("processor", {}),
    }
    return Qwen3VLForConditionalGeneration(config), QWEN3_TEMPLATE, processor


def _gemma3(folder: Path, **sizes: dict):
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _tokenizer(folder, ["<start_of_turn>"], "<end_of_turn>", **named)
    boi, eoi, image = tokenizer.convert_tokens_to_ids(list(named.values()))
    text = {
        **TEXT,
        # The last of six has no window; the engine's library knows no other order.
        "num_hidden_layers": 6,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 48,
        "vocab_size": len(tokenizer),
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        **sizes.get("text", {}),
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 128,
        "patch_size": 8,
        "vision_use_head": False,
        **sizes.get("vision", {}),
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        # A vector for 4 by 4 patches.
        mm_tokens_per_image=(vision["image_size"] // vision["patch_size"] // 4) ** 2,
        boi_token_index=boi,
        eoi_token_index=eoi,
        image_token_index=image,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=2,
    )
    side = config.vision_config.image_size
    processor = {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_seq_length": config.mm_tokens_per_image,
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": side, "width": side},
        **sizes.get("processor", {}),
    }
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Gemma3Processor", "image_seq_length": config.mm_tokens_per_image}, indent=2)
    )
    return Gemma3ForConditionalGeneration(config), GEMMA_TEMPLATE, processor


def convert(folder: Path, converters: Path) -> None:
    """Writes the GGUF files of the checkpoint in `folder/hf`: the language model and its projector, also in 16 bits."""
    from trainer.runtime.converters import run_converter

    projectors = [("mmproj-model.gguf", "f32"), ("mmproj-model-f16.gguf", "f16")]
    files = [("model.gguf", "f32", []), *((name, outtype, ["--mmproj"]) for name, outtype in projectors)]
    for name, outtype, options in files:
        arguments = [str(folder / "hf"), "--outfile", str(folder / name), "--outtype", outtype, *options]
        run_converter(converters, "convert_hf_to_gguf.py", arguments)


if __name__ == "__main__":
    with importing():
        if "--gguf" in sys.argv:
            make_tiny_vision(sys.argv[1], Path(sys.argv[2]) / "hf")
            convert(Path(sys.argv[2]), Path(sys.argv[4]))
        else:
            make_tiny_vision(sys.argv[1], Path(sys.argv[2]))
