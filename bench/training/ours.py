"""Times Tunery's trainer on a file of rows like the peer: the first steps (`--warm-up`) are not counted. Prints one
JSON line.

python -m bench.training.ours MODEL_DIR ROWS [--steps N] [--batch B] [--seed S] [--precision P] [--heldout ROWS]
[--adapter FOLDER] [--objective dpo|kto] [--epochs E] [--projector]

Pictures are encoded once, before the first step; their time counts.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error"
)


def spec_of(args: argparse.Namespace, threads: int, steps: int):
    from trainer.runtime.spec import Base, CheckpointPolicy, Dataset, Lora, Options, Spec, Training

    training = Training(
        epochs=args.epochs,
        batch_size=args.batch,
        learning_rate=args.rate,
        warmup_ratio=0.0,
        scheduler="linear",
        seed=args.seed,
        max_length=args.max_length,
    )
    return Spec(
        job_id="bench",
        attempt=1,
        base=Base("bench", args.model),
        dataset=Dataset("", ""),
        method=args.method,
        lora=None if args.method == "full" else Lora(r=args.rank, alpha=2 * args.rank, target_modules="all-linear"),
        projector=args.projector,
        training=training,
        options=Options(objective=args.objective),
        threads=threads,
        checkpoint=CheckpointPolicy(every_seconds=None),
        resume_from=[],
        converters="",
    )


PEAK_SIZE = 2048


def products_seconds(dtype, clock) -> list[float]:
    """Seconds of a few products of two square matrices of `PEAK_SIZE`."""
    import torch

    a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(6):
        started = clock()
        a @ b
        times.append(clock() - started)
    # The first one finds cold caches.
    return times[1:]


def synchronized_time(device) -> float:
    """The time after the device has finished its queue."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def in_windows(loop, args: argparse.Namespace, device) -> None:
    """Takes turns with the peers: `Clock` and `report_window` of peer_trl.py."""
    import torch

    for start in (0, *range(args.warm_up, args.steps, args.window)):
        size = args.warm_up if start == 0 else args.window
        batches = [loop.batch(step) for step in range(start, start + size)]
        started = synchronized_time(device)
        loop.reference_of([row for batch in batches for row in batch])
        for batch in batches:
            loop.step(batch)
            loop.totals.step += 1
        seconds, peak = synchronized_time(device) - started, round(torch.cuda.max_memory_reserved() / 1e6)
        tokens = sum(row.tokens for batch in batches for row in batch)
        print(json.dumps({"tokens": tokens, "seconds": seconds, "peak_memory_mb": peak}), flush=True)
        torch.cuda.empty_cache()
        sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--method", choices=["lora", "qlora", "full"], default="lora")
    parser.add_argument("--objective", choices=["sft", "dpo", "kto"], default="sft")
    parser.add_argument("--projector", action="store_true", help="train the projector too")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", choices=["float32", "bfloat16"])
    parser.add_argument("--peak", action="store_true", help="measure the peak of matrix products after each step")
    parser.add_argument("--heldout", type=Path, help="also print the mean loss on these rows, before and after")
    parser.add_argument(
        "--adapter", type=Path, help="load this PEFT adapter, train nothing, print its loss on --heldout"
    )
    parser.add_argument("--window", type=int, help="as the peers': see peer_trl.py")
    parser.add_argument("--order", action="store_true", help="train nothing, print the numbers of the rows in order")
    args = parser.parse_args()
    threads = args.threads
    from trainer.runtime.process import torch_settings

    os.environ.update(torch_settings(threads))
    import torch

    from bench.training.rows import canonical_file
    from trainer.data.dataset import prepare
    from trainer.data.rows import read_rows
    from trainer.model import gpu
    from trainer.model.load import device_and_dtype, load_config, load_model, load_tokenizer
    from trainer.run import memory
    from trainer.run.loop import Loop, limits_of
    from trainer.runtime.files import sha256_of
    from trainer.runtime.protocol import SilentProtocol

    torch.set_num_threads(threads)
    spec = spec_of(args, threads, args.steps)
    device, dtype = device_and_dtype()
    gpu.select_device(device)
    dtype = getattr(torch, args.precision) if args.precision else dtype
    tokenizer = load_tokenizer(spec)

    def rows_of(path: Path):
        file = canonical_file(path)
        parsed = read_rows(file, sha256_of(file), args.objective)
        return prepare(parsed, tokenizer, args.max_length, SilentProtocol())

    data, heldout = rows_of(args.rows), args.heldout and rows_of(args.heldout)
    if args.window:
        print("{}", flush=True)
        sys.stdin.readline()
    config = load_config(spec)
    tokens, targets, passes = memory.largest_pack(data, spec, limits_of(config, spec, device), device)
    shape = memory.shape_of(config)
    predicted = memory.predicted_bytes(shape, spec, dtype.itemsize, tokens, targets, device, passes=passes)
    model = load_model(spec, device, dtype)
    folder = args.rows.parent / "run"
    loop = Loop(spec, model, tokenizer, data, heldout, folder, device, SilentProtocol(), predicted=predicted)
    memory.keep_heap(device)
    report: dict[str, object] = {"precision": str(dtype).removeprefix("torch.")}
    if args.order:
        # The order of the rows, for a trainer that takes them as they come.
        print(json.dumps([row.number - 1 for step in range(args.steps) for row in loop.batch(step)]))
        return
    if args.window:
        in_windows(loop, args, device)
        return
    if heldout:
        loop.reference_of(heldout.rows)
    if args.adapter:
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        with torch.no_grad():
            set_peft_model_state_dict(model, load_file(args.adapter / "adapter_model.safetensors"))
    else:
        losses, tokens, seconds, cpu_seconds = [], 0, 0.0, 0.0
        # One thread is timed by the CPU, for use beside other work.
        peak_clock = time.process_time if threads == 1 else time.perf_counter
        peak_times: list[float] = []
        encoding = synchronized_time(device)
        for index in loop.features.missing if loop.features else []:
            loop.features.encode(index)
        encoding_seconds = synchronized_time(device) - encoding
        counted = [row for step in range(args.warm_up, args.steps) for row in loop.batch(step)]
        warm_up = [row for step in range(args.warm_up) for row in loop.batch(step)]
        loop.reference_of(warm_up)
        scored = synchronized_time(device)
        loop.reference_of(counted)
        reference_seconds = synchronized_time(device) - scored
        for step in range(args.steps):
            batch = loop.batch(step)
            started, cpu_started = synchronized_time(device), time.process_time()
            losses.append(loop.step(batch)[0])
            if step >= args.warm_up:
                seconds += synchronized_time(device) - started
                cpu_seconds += time.process_time() - cpu_started
                tokens += sum(row.tokens for row in batch)
                peak_times += products_seconds(dtype, peak_clock) if args.peak else []
            loop.totals.step += 1
        # Preferences are scored once before the first step.
        seconds += reference_seconds + encoding_seconds
        if args.peak:
            report["peak_flops"] = 2 * PEAK_SIZE**3 / statistics.median(peak_times)
        report |= {"peak_memory_mb": round(memory.peak_bytes(device) / 1e6), "predicted_mb": round(predicted / 1e6)}
        report |= {
            "real_tokens": tokens,
            "seconds": round(seconds, 2),
            # The time of the steps alone.
            "cpu_seconds": round(cpu_seconds, 2),
            "tokens_per_second": round(tokens / seconds, 1),
            "encoding_seconds": round(encoding_seconds, 2),
            "losses": losses,
        }
    if heldout:
        report["heldout_loss"] = loop.objective.score(loop.model, heldout, loop.limits, args.batch).loss
    print(json.dumps(report))


if __name__ == "__main__":
    main()
