"""The peer: TRL's SFTTrainer with LoRA on a file of conversations, in one of its modes. Runs in an environment of its
own.

`default` is TRL's default (bf16, gradient checkpointing on); `fp32` and `bf16` switch checkpointing off. `half` loads
the base in bf16 too, `packing` is `half` with packed rows, `compile` is `half` with torch.compile. For GPUs: `liger` is
`half` with Liger's fused kernels; `flash` is `packing` with FlashAttention between documents, `flash-liger` both.
Only the last message is learned. The first steps (`--warm-up`) are not counted. Prints one JSON line.
"""

import argparse
import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import flash_attention
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
from trl import SFTConfig, SFTTrainer

MODES = {
    "default": {},
    "fp32": {"bf16": False, "gradient_checkpointing": False},
    "bf16": {"bf16": True, "gradient_checkpointing": False},
    "half": {"bf16": True, "gradient_checkpointing": False},
    "liger": {"bf16": True, "gradient_checkpointing": False, "use_liger_kernel": True},
    "packing": {"bf16": True, "gradient_checkpointing": False, "packing": True},
    "compile": {"bf16": True, "gradient_checkpointing": False, "torch_compile": True},
    "flash": {"bf16": True, "gradient_checkpointing": False, "packing": True},
    "flash-liger": {"bf16": True, "gradient_checkpointing": False, "packing": True, "use_liger_kernel": True},
}
IN_BF16 = ("half", "liger", "packing", "compile", "flash", "flash-liger")


class Clock(TrainerCallback):
    """Seconds and tokens without padding since the end of the warm-up. With `window`, of each so many steps: prints
    them as a line of JSON, and waits for its next turn.
    """

    def __init__(self, warm_up: int, window: int | None = None) -> None:
        self.warm_up, self.window, self.steps = warm_up, window, 0
        self.start, self.seconds, self.tokens = 0.0, 0.0, 0
        self.cpu_start, self.cpu_seconds = 0.0, 0.0

    def on_train_begin(self, args, *_: object, **__: object) -> None:
        self.last = args.max_steps

    def on_step_end(self, *_: object, **__: object) -> None:
        self.steps += 1
        counted = self.steps - self.warm_up
        ends = counted >= 0 and self.window is not None and counted % self.window == 0
        if torch.cuda.is_available() and (ends or self.steps in (self.warm_up, self.last)):
            torch.cuda.synchronize()
        self.seconds, self.cpu_seconds = time.perf_counter() - self.start, time.process_time() - self.cpu_start
        if ends:
            report_window(self.tokens, self.seconds)
        if ends or counted == 0:
            self.start, self.tokens, self.cpu_start = time.perf_counter(), 0, time.process_time()


def report_window(tokens: int, seconds: float) -> None:
    """Prints what a window took, gives the GPU's free memory back, and waits for the next turn."""
    peak = torch.cuda.max_memory_reserved()
    print(json.dumps({"tokens": tokens, "seconds": seconds, "peak_memory_mb": round(peak / 1e6)}), flush=True)
    torch.cuda.empty_cache()
    sys.stdin.readline()


def parser_of(modes: dict[str, dict]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rows")
    parser.add_argument("--mode", choices=list(modes), default="default")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", default="trl-out")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument(
        "--window",
        type=int,
        help="take turns with others: wait for a line on stdin before the model is "
        "loaded, after the warm-up and after each so many steps, and print a line for each",
    )
    return parser


def wait_for_turn(args: argparse.Namespace) -> None:
    """Imports and rows are ready; the turn of this trainer may be later."""
    if args.window:
        print("{}", flush=True)
        sys.stdin.readline()


def settings_of(args: argparse.Namespace, modes: dict[str, dict]) -> dict:
    """What every trainer's configuration has."""
    return {
        "output_dir": args.out,
        "per_device_train_batch_size": args.batch,
        "gradient_accumulation_steps": 1,
        "max_steps": args.steps,
        "learning_rate": args.rate,
        "lr_scheduler_type": "linear",
        "max_length": args.max_length,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
        "disable_tqdm": True,
        "seed": args.seed,
        **modes[args.mode],
    }


def adapter_of(args: argparse.Namespace) -> LoraConfig:
    return LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear")


def train(trainer, clock: Clock, args: argparse.Namespace) -> list[float]:
    """Counts the tokens without padding. Returns the loss of each step."""
    compute_loss = trainer.compute_loss

    def counting_loss(model, inputs, *rest, **named):
        clock.tokens += (
            int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else inputs["input_ids"].numel()
        )
        return compute_loss(model, inputs, *rest, **named)

    trainer.compute_loss = counting_loss
    trainer.train()
    if args.save:
        trainer.save_model(args.out)
    return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]


def model_of(args: argparse.Namespace):
    dtype = torch.bfloat16 if args.mode in IN_BF16 else torch.float32
    quantization = None
    if args.method == "qlora":
        computed = torch.float32 if args.mode == "fp32" else torch.bfloat16
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=computed,
        )
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, quantization_config=quantization)
    if args.mode.startswith("flash"):
        flash_attention.use(model)
    return model


def main() -> None:
    parser = parser_of(MODES)
    parser.add_argument("--method", choices=["lora", "qlora", "full"], default="lora")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = load_dataset("json", data_files=args.rows, split="train")
    rows = rows.map(
        lambda row: {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}, remove_columns=["messages"]
    )
    wait_for_turn(args)
    clock = Clock(args.warm_up, args.window)
    trainer = SFTTrainer(
        model_of(args),
        args=SFTConfig(**settings_of(args, MODES)),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        peft_config=None if args.method == "full" else adapter_of(args),
        callbacks=[clock],
    )
    losses = train(trainer, clock, args)
    peak = round(torch.cuda.max_memory_reserved() / 1e6) if torch.cuda.is_available() else None
    result = {
        "mode": args.mode,
        "peak_memory_mb": peak,
        "real_tokens": clock.tokens,
        "seconds": round(clock.seconds, 2),
        "cpu_seconds": round(clock.cpu_seconds, 2),
    }
    print(json.dumps({**result, "tokens_per_second": round(clock.tokens / clock.seconds, 1), "losses": losses}))


if __name__ == "__main__":
    main()
