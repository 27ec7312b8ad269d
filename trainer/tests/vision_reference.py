"""Log-probabilities of a vision checkpoint's next token, by transformers: what the engine's answers are compared with.

    python -m trainer.tests.vision_reference CHECKPOINT < REQUESTS

REQUESTS is a JSON list; each request has `messages` in the form of chat templates (parts of type `text` and `image`),
and `images`, PNG files in base64. Prints a JSON list with, for each, the number of the prompt's tokens and the 20
highest log-probabilities after it.
"""

import base64
import io
import json
import os
import sys


def read_checkpoint(folder: str):
    """The processor and the model, in float32."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with open(f"{folder}/chat_template.jinja") as file:
        template = file.read()
    # The classes with the PIL backend by name: the default ones need torchvision.
    if config.model_type == "smolvlm":
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil as Images
    elif config.model_type == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil as Images
    else:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as Images
    images = Images.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32).eval()
    return config, tokenizer, template, images, model


def read_images(config, processor, images: list) -> dict:
    """What the family's image processor makes of PIL images: `pixel_values` and what belongs to them."""
    if config.model_type == "smolvlm":
        return dict(processor([images], return_tensors="pt", return_row_col_info=True))
    return dict(processor(images, return_tensors="pt"))


def expand_prompt(config, text: str, inputs) -> str:
    """The prompt with a placeholder for every vector, as the family's processor writes it."""
    if config.model_type == "smolvlm":
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        side = config.vision_config.image_size // config.vision_config.patch_size
        length = side * side // config.scale_factor**2
        for rows, columns in zip(inputs["rows"][0], inputs["cols"][0], strict=True):
            shown = get_image_prompt_string(rows, columns, length, "<fake_token_around_image>", "\0", "<global-img>")
            text = text.replace("<image>", shown, 1)
        return text.replace("\0", "<image>")
    if config.model_type == "gemma3":
        # As Gemma3Processor, which has it in its instances alone.
        vectors = "<image_soft_token>" * config.mm_tokens_per_image
        return text.replace("<start_of_image>", f"\n\n<start_of_image>{vectors}<end_of_image>\n\n")
    merge = config.vision_config.spatial_merge_size**2
    for grid in inputs["image_grid_thw"]:
        text = text.replace("<|image_pad|>", "\0" * (int(grid.prod()) // merge), 1)
    return text.replace("\0", "<|image_pad|>")


def arguments(config, tokens, inputs: dict) -> dict:
    """The model's arguments for the tokens of an expanded prompt, int64 [1, tokens], and its pictures."""
    import torch

    given = {name: value for name, value in inputs.items() if name not in ("rows", "cols", "num_crops")}
    types = {"gemma3": "token_type_ids", "qwen2_5_vl": "mm_token_type_ids", "qwen3_vl": "mm_token_type_ids"}
    if given and config.model_type in types:
        given[types[config.model_type]] = (tokens == config.image_token_id).int()
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **given}


def main() -> None:
    import torch
    from PIL import Image

    config, tokenizer, template, image_processor, model = read_checkpoint(sys.argv[1])
    answers = []
    for request in json.load(sys.stdin):
        text = tokenizer.apply_chat_template(
            request["messages"], chat_template=template, tokenize=False, add_generation_prompt=True
        )
        files = [Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB") for image in request["images"]]
        inputs = read_images(config, image_processor, files) if files else {}
        if files:
            text = expand_prompt(config, text, inputs)
        tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(**arguments(config, tokens, inputs)).logits[0, -1]
        answers.append({"tokens": tokens.shape[1], "logprobs": torch.log_softmax(logits, -1).topk(20).values.tolist()})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
