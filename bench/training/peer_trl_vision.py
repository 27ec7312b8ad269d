"""The peer: TRL's SFTTrainer with LoRA on the language model of a vision base, on a file of conversations with
pictures, in one of its modes. Runs in its own environment.

`default` is TRL's default (bf16, gradient checkpointing on); `bf16` and `fp32` switch checkpointing off. Rows are taken
in the order of the file. Only the last message is learned. The first step is not counted. Prints one JSON line.
"""

import base64
import io
import json
import os

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch
from datasets import Dataset
from peer_trl import MODES, Clock, adapter_of, parser_of, settings_of, train
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import SFTConfig, SFTTrainer


def example_of(row: dict) -> dict:
    """A conversation in the form that TRL takes."""
    *prompt, answer = row["messages"]
    images, shown = [], []
    for message in prompt:
        parts = []
        for part in message["content"]:
            if part["type"] == "image_url":
                file = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                images.append(Image.open(io.BytesIO(file)).convert("RGB"))
            parts.append({"type": "image", "text": None} if part["type"] == "image_url" else part)
        shown.append({"role": message["role"], "content": parts})
    answers = [{"role": "assistant", "content": [{"type": "text", "text": answer["content"]}]}]
    return {"prompt": shown, "completion": answers, "images": images}


def main() -> None:
    args = parser_of(MODES).parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with open(args.rows) as file:
        rows = Dataset.from_list([example_of(json.loads(line)) for line in file])
    adapter = adapter_of(args)
    adapter.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    adapter.exclude_modules = r".*\.(vision_model|connector)\..*"
    clock = Clock(warm_up=1)
    trainer = SFTTrainer(
        AutoModelForImageTextToText.from_pretrained(args.model, dtype=torch.float32),
        args=SFTConfig(**settings_of(args, MODES) | {"max_length": None}, train_sampling_strategy="sequential"),
        train_dataset=rows,
        processing_class=AutoProcessor.from_pretrained(args.model),
        peft_config=adapter,
        callbacks=[clock],
    )
    losses = train(trainer, clock, args)
    result = {"mode": args.mode, "real_tokens": clock.tokens, "seconds": round(clock.seconds, 2)}
    result["tokens_per_second"] = round(clock.tokens / clock.seconds, 1)
    print(json.dumps({**result, "losses": losses}))


if __name__ == "__main__":
    main()
