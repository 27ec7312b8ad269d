"""Measures settings on the small tasks: trains as the service does, then counts exact answers on unseen rows.

    .local/python/bin/python -m examples.tasks.measure --tasks tickets,normalise --rows 240 --rates 2e-4,1e-3
        --epochs 3 [--ranks 16] [--batch-sizes 8] [--warmups 0.05] [--seed 7] [--method full] [--heldout]

Prints one JSON line for each run and appends it to .local/measured.jsonl. `exact` is the share of validation rows in
which every answer token is the model's top choice after the tokens before it, which means that the greedy answer is
exactly right. `--heldout` is the final measurement of the demo's task: it trains on examples/ticket-triage.jsonl and
scores examples/ticket-triage.heldout.jsonl.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error"
)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"


def measure(
    rows: list[dict], unseen: list[dict], training: dict, rank: int, threads: int, precision: str | None, method: str
) -> dict:
    import torch

    from trainer.data.dataset import prepare
    from trainer.data.packing import Limits
    from trainer.model.load import device_and_dtype, load_model, load_tokenizer
    from trainer.run.evaluate import score
    from trainer.run.loop import Loop
    from trainer.runtime.protocol import SilentProtocol
    from trainer.runtime.spec import Base, CheckpointPolicy, Dataset, Lora, Spec, Training

    settings = Training(max_length=2048, **training)
    spec = Spec(
        job_id="measure",
        attempt=1,
        base=Base(BASE, str(ROOT / ".local/models" / BASE / "hf")),
        dataset=Dataset("", ""),
        method=method,
        lora=None if method == "full" else Lora(r=rank, alpha=2 * rank, target_modules="all-linear"),
        training=settings,
        threads=threads,
        checkpoint=CheckpointPolicy(every_seconds=None),
        resume_from=[],
        converters="",
    )
    device, dtype = device_and_dtype()
    dtype = getattr(torch, precision) if precision else dtype
    tokenizer = load_tokenizer(spec)
    conversations = [[row["messages"] for row in part] for part in (rows, unseen)]
    train, validation = (prepare(part, tokenizer, settings.max_length, SilentProtocol()) for part in conversations)
    model = load_model(spec, device, dtype)
    _, before, _ = score(model, validation, Limits(), device)
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.monotonic(), time.process_time()
        loop = Loop(spec, model.train(), tokenizer, train, None, Path(folder), device, SilentProtocol())
        loop.run()
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    _, after, _ = score(model, validation, Limits(), device)
    return {
        "precision": str(dtype).removeprefix("torch."),
        "exact_before": before,
        "exact": after,
        "train_loss": round(loop.train_loss, 4),
        "tokens": loop.totals.tokens,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "tokens_per_second": round(loop.totals.tokens / seconds, 1),
    }


def main() -> None:
    def listed(kind: type):
        return lambda text: [kind(part) for part in text.split(",")]

    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=listed(str), default=["tickets"])
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rates", type=listed(float), default=[1e-3])
    parser.add_argument("--epochs", type=listed(int), default=[3])
    parser.add_argument("--ranks", type=listed(int), default=[16])
    parser.add_argument("--batch-sizes", type=listed(int), default=[8])
    parser.add_argument("--warmups", type=listed(float), default=[0.05])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=["float32", "bfloat16"], help="default: the machine's own")
    parser.add_argument("--method", choices=["lora", "qlora", "full"], default="lora")
    parser.add_argument("--heldout", action="store_true")
    args = parser.parse_args()
    from trainer.runtime.process import torch_settings

    os.environ.update(torch_settings(args.threads))
    import torch

    from examples.tasks.tasks import TASKS

    torch.set_num_threads(args.threads)
    grid = itertools.product(args.tasks, args.rates, args.epochs, args.ranks, args.batch_sizes, args.warmups)
    for task, rate, epochs, rank, batch_size, warmup in grid:
        if args.heldout:
            files = [EXAMPLES / "ticket-triage.jsonl", EXAMPLES / "ticket-triage.heldout.jsonl"]
            rows, unseen = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
        else:
            rows, unseen = TASKS[task](args.rows, args.seed)
        training = {"learning_rate": rate, "epochs": epochs, "batch_size": batch_size, "warmup_ratio": warmup}
        found = measure(rows, unseen, training, rank, args.threads, args.precision, args.method)
        setting = {
            "task": "heldout" if args.heldout else task,
            "rows": len(rows),
            "seed": args.seed,
            "method": args.method,
            "r": rank,
            **training,
        }
        line = json.dumps({**setting, **found})
        print(line, flush=True)
        with (ROOT / ".local/measured.jsonl").open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
