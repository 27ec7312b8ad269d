"""Writes a tiny but complete checkpoint for tests: `python -m trainer.tests.make_tiny OUT_DIR`.

Llama architecture (other families in the trainer's tests), 2 layers, hidden size 64, context 2048, random weights, the
default model's tokenizer and chat template; the engine's converter reads it like any checkpoint, in a second or two.
"""

import json
import os
import shutil
import sys
from pathlib import Path

TOKENIZER = Path(__file__).parents[2] / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
VOCABULARY = 49152
# The first tokens: all is faster, but llama.cpp's converter does not know them.
SMALL_VOCABULARY = 2048
# The shape of the language model, and the tokenizer's own ids.
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def make_tiny(folder: Path, seed: int = 0, family: str = "Llama", **config) -> Path:
    """Writes the checkpoint into `folder` and returns it. The same seed gives the same weights. With a smaller
    `vocab_size` its tokenizer has the first tokens alone.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    tiny = {**TEXT, "vocab_size": VOCABULARY, "tie_word_embeddings": True, **config}
    model_class = getattr(transformers, f"{family}ForCausalLM")
    config = model_class.config_class(**tiny)
    torch.manual_seed(seed)
    model = model_class(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            # The initial zeros and ones would hide mistakes in their use.
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    model.save_pretrained(folder)
    return write_tokenizer(folder, config.vocab_size)


def write_tokenizer(folder: Path, size: int) -> Path:
    """The default tokenizer with the tokens whose ids are below `size`: special ones, bytes, and the merges that
    were learned first. Returns the folder.
    """
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / name, folder / name)
    if size == VOCABULARY:
        return folder
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if id < size}
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    model["merges"] = [pair for pair in pairs if "".join(pair) in model["vocab"]]
    file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return folder


if __name__ == "__main__":
    make_tiny(Path(sys.argv[1]))
