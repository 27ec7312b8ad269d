"""The peer on GPUs: Unsloth's trainer with LoRA on a file of conversations, in its best mode: bf16, packed rows, its
own kernels, no gradient checkpointing. Runs in its own environment.

Unlike the others it learns all tokens, prompts included; they are few. The first steps (`--warm-up`) are not counted.
Prints one JSON line.
"""

import json
import os

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", UNSLOTH_DISABLE_STATISTICS="1")
# Both change the libraries that are imported after them.
import flash_attention  # noqa: F401  isort: split
from unsloth import FastLanguageModel  # isort: split

import torch
from datasets import load_dataset
from peer_trl import Clock, parser_of, settings_of, train, wait_for_turn
from trl import SFTConfig, SFTTrainer

MODES = {"unsloth": {"bf16": True, "gradient_checkpointing": False, "packing": True, "optim": "adamw_torch_fused"}}


def main() -> None:
    parser = parser_of(MODES)
    parser.set_defaults(mode="unsloth")
    args = parser.parse_args()
    rows = load_dataset("json", data_files=args.rows, split="train")
    wait_for_turn(args)
    model, tokenizer = FastLanguageModel.from_pretrained(
        args.model, max_seq_length=args.max_length, dtype=torch.bfloat16, load_in_4bit=False, local_files_only=True
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = FastLanguageModel.get_peft_model(
        model,
        r=args.rank,
        lora_alpha=2 * args.rank,
        lora_dropout=0,
        target_modules=targets,
        use_gradient_checkpointing=False,
        random_state=args.seed,
    )
    rows = rows.map(
        lambda row: {"text": tokenizer.apply_chat_template(row["messages"], tokenize=False)},
        remove_columns=["messages"],
    )
    clock = Clock(args.warm_up, args.window)
    settings = settings_of(args, MODES) | {"dataset_text_field": "text", "dataset_num_proc": 1}
    trainer = SFTTrainer(
        model=model, args=SFTConfig(**settings), train_dataset=rows, processing_class=tokenizer, callbacks=[clock]
    )
    losses = train(trainer, clock, args)
    result = {
        "mode": args.mode,
        "peak_memory_mb": round(torch.cuda.max_memory_reserved() / 1e6),
        "real_tokens": clock.tokens,
        "seconds": round(clock.seconds, 2),
    }
    print(json.dumps({**result, "tokens_per_second": round(clock.tokens / clock.seconds, 1), "losses": losses}))


if __name__ == "__main__":
    main()
