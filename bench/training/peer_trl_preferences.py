"""The peer: TRL's DPOTrainer or KTOTrainer with LoRA on a file of preferences, in one of its modes. Runs in an
environment of its own.

`default` is TRL's default (bf16, gradient checkpointing on); `bf16` and `fp32` switch checkpointing off; `precompute`
is `bf16` with the reference computed before the training. `half` is `bf16` with the base in bf16 too; `liger`, for
GPUs, is `half` with Liger's fused kernels. Rows are taken in the order of the file. The first
steps (`--warm-up`) are not counted; the reference's time counts in every mode. Prints one JSON line.
"""

import json
import os
import time

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch
from datasets import disable_caching, load_dataset
from peer_trl import Clock, adapter_of, parser_of, settings_of, train, wait_for_turn
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

MODES = {
    "default": {},
    "fp32": {"bf16": False, "gradient_checkpointing": False},
    "bf16": {"bf16": True, "gradient_checkpointing": False},
    "precompute": {"bf16": True, "gradient_checkpointing": False, "precompute_ref_log_probs": True},
    "half": {"bf16": True, "gradient_checkpointing": False},
    "liger": {"bf16": True, "gradient_checkpointing": False, "use_liger_kernel": True},
}
IN_BF16 = ("half", "liger")


def messages(row: dict) -> dict:
    """Texts as messages: TRL would not put plain texts into the chat template."""
    answers = {name: [{"role": "assistant", "content": row[name]}] for name in row if name not in ("prompt", "label")}
    return {"prompt": [{"role": "user", "content": row["prompt"]}], **answers}


def main() -> None:
    parser = parser_of(MODES)
    parser.add_argument("--objective", choices=["dpo", "kto"], required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = load_dataset("json", data_files=args.rows, split="train").map(messages)
    config, trainer_of = {"dpo": (DPOConfig, DPOTrainer), "kto": (KTOConfig, KTOTrainer)}[args.objective]
    # Else a second run takes the reference from the first one's cache.
    disable_caching()
    clock, reference_seconds = Clock(args.warm_up, args.window), 0.0
    precompute = trainer_of._precompute_ref_logps

    def timed_precompute(*rest: object, **named: object):
        nonlocal reference_seconds
        started = time.perf_counter()
        found = precompute(*rest, **named)
        reference_seconds += time.perf_counter() - started
        return found

    trainer_of._precompute_ref_logps = timed_precompute
    wait_for_turn(args)
    trainer = trainer_of(
        AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16 if args.mode in IN_BF16 else torch.float32
        ),
        args=config(**settings_of(args, MODES), train_sampling_strategy="sequential"),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        peft_config=adapter_of(args),
        callbacks=[clock],
    )
    losses = train(trainer, clock, args)
    # A reference that was computed before counts for the steps that are counted.
    seconds = clock.seconds + reference_seconds * (args.steps - args.warm_up) / args.steps
    result = {"mode": args.mode, "real_tokens": clock.tokens, "seconds": round(seconds, 2)}
    result["peak_memory_mb"] = round(torch.cuda.max_memory_reserved() / 1e6) if torch.cuda.is_available() else None
    result["tokens_per_second"] = round(clock.tokens / seconds, 1)
    print(json.dumps({**result, "losses": losses}))


if __name__ == "__main__":
    main()
