"""Writes a checkpoint of the shape of Qwen3-0.6B with random weights, and the tokenizer of the default base:
`python -m bench.serving.make_added_base OUT`. Speed does not depend on what a model has learned."""

import os
import sys
from pathlib import Path

from trainer.tests.make_tiny import VOCABULARY, write_tokenizer


def main(folder: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_theta=1_000_000,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, VOCABULARY)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
