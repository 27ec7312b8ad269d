"""The peer: TRL's DPOTrainer or KTOTrainer with LoRA on a file of preferences, in one of its modes. Runs in an
environment of its own.

`default` is TRL's default (bf16, gradient checkpointing on); `bf16` and `fp32` switch checkpointing off; `precompute`
is `bf16` with the reference computed before the training. Rows are taken in the order of the file. The first step is
not counted; the reference's time counts in every mode. Prints one JSON line.
"""

import argparse
import json
import os
import time

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

MODES = {
    "default": {},
    "fp32": {"bf16": False, "gradient_checkpointing": False},
    "bf16": {"bf16": True, "gradient_checkpointing": False},
    "precompute": {"bf16": True, "gradient_checkpointing": False, "precompute_ref_log_probs": True},
}


class Clock(TrainerCallback):
    """Seconds and tokens without padding since the first step."""

    def __init__(self) -> None:
        self.steps, self.start, self.seconds, self.tokens = 0, 0.0, 0.0, 0

    def on_step_end(self, *_: object, **__: object) -> None:
        self.steps += 1
        now = time.perf_counter()
        if self.steps == 1:
            self.start, self.tokens = now, 0
        self.seconds = now - self.start


def messages(row: dict) -> dict:
    """Texts as messages: TRL would not put plain texts into the chat template."""
    answers = {name: [{"role": "assistant", "content": row[name]}] for name in row if name not in ("prompt", "label")}
    return {"prompt": [{"role": "user", "content": row["prompt"]}], **answers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rows")
    parser.add_argument("--objective", choices=["dpo", "kto"], required=True)
    parser.add_argument("--mode", choices=list(MODES), default="default")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default="trl-out")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = load_dataset("json", data_files=args.rows, split="train").map(messages)
    config, trainer_of = {"dpo": (DPOConfig, DPOTrainer), "kto": (KTOConfig, KTOTrainer)}[args.objective]
    clock, reference_seconds = Clock(), 0.0
    precompute = trainer_of._precompute_ref_logps

    def timed_precompute(*rest: object, **named: object):
        nonlocal reference_seconds
        started = time.perf_counter()
        found = precompute(*rest, **named)
        reference_seconds += time.perf_counter() - started
        return found

    trainer_of._precompute_ref_logps = timed_precompute
    trainer = trainer_of(
        AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        args=config(
            output_dir=args.out,
            per_device_train_batch_size=args.batch,
            max_steps=args.steps,
            learning_rate=args.rate,
            lr_scheduler_type="linear",
            max_length=args.max_length,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
            seed=args.seed,
            train_sampling_strategy="sequential",
            **MODES[args.mode],
        ),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        peft_config=LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"),
        callbacks=[clock],
    )
    compute_loss = trainer.compute_loss

    def counting_loss(model, inputs, *rest, **named):
        clock.tokens += int(inputs["attention_mask"].sum())
        return compute_loss(model, inputs, *rest, **named)

    trainer.compute_loss = counting_loss
    trainer.train()
    if args.save:
        trainer.save_model(args.out)
    losses = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
    # A reference that was computed before counts for the steps that are counted.
    seconds = clock.seconds + reference_seconds * (args.steps - 1) / args.steps
    result = {"mode": args.mode, "real_tokens": clock.tokens, "seconds": round(seconds, 2)}
    result["tokens_per_second"] = round(clock.tokens / seconds, 1)
    print(json.dumps({**result, "losses": losses}))


if __name__ == "__main__":
    main()
