"""`npm run test:numbers`: trains a job of each kind, recomputes it with an independent loop in float32
(independent.py), and compares what the job reported with what it delivered. Prints a table and ends with 1 where a
figure misses its limit.

npm run test:numbers [-- --only lora,dpo] [--rows 24] [--dtype float32|bfloat16] [--base FOLDER]

Jobs train in the precision that the trainer takes on this processor, or in that of `--dtype`: bfloat16 is slow without
instructions for it. The independent loop computes in float32.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / ".local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf"
# Method, objective and default learning rate (docs/decisions/043-default-hyperparameters.md).
KINDS = {
    "lora": ("lora", "sft", 1e-3),
    "full": ("full", "sft", 1e-4),
    "qlora": ("qlora", "sft", 1e-3),
    "dpo": ("lora", "dpo", 1e-4),
    "kto": ("lora", "kto", 1e-4),
}
PROMPTS = ["Hello! Who are you?", "We paid twice for the yearly plan. Can we get it back? Greta", "Where is my order?"]
ANSWER_TOKENS = 32
# What a job reports of its result may differ from the result judged in float32 by this share.
REPORTED_SHARE = 0.02
# The loss of a step and the first gradient may differ from the independent loop's by these shares; the result's own
# validation loss too, as after many steps two loops are two runs.
LOSS_SHARE = {"float32": 0.02, "bfloat16": 0.1}
MEMORY_SHARE = 0.15
# Trains in a precision whatever the processor has. The rest of the process is a job's own, as its memory is measured.
IN_DTYPE = """
import sys
from trainer.cli import train
from trainer.run.prepare import prepare_run
from trainer.runtime.process import importing
name = sys.argv.pop()
def prepare_in_dtype(*arguments):
    with importing():
        import torch
        from trainer.model import load
    load.device_and_dtype = lambda: (torch.device("cpu"), getattr(torch, name))
    return prepare_run(*arguments)
train.prepare_run = prepare_in_dtype
train.run_job(train.train)
"""


def rows_of(objective: str) -> list[dict]:
    """Rows of the examples in the form in which the service stores them."""
    name = "support-replies.jsonl" if objective == "sft" else "support-replies.preferences.jsonl"
    rows = [json.loads(line) for line in (ROOT / "examples" / name).read_text().splitlines()]
    if objective == "sft":
        return rows
    pairs = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{answer: {"role": "assistant", "content": row[answer]} for answer in ("chosen", "rejected")},
        }
        for row in rows
    ]
    if objective == "dpo":
        return pairs
    return [
        {"messages": [*pair["prompt"], pair["rejected" if index % 2 else "chosen"]], "label": index % 2 == 0}
        for index, pair in enumerate(pairs)
    ]


def write_rows(path: Path, rows: list[dict]) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def spec_of(kind: str, folder: Path, base: Path, rows: int) -> dict:
    method, objective, rate = KINDS[kind]
    found = rows_of(objective)
    held_out = max(4, rows // 3)
    return {
        "job_id": "job_1",
        "attempt": 1,
        "base": {"id": "base", "path": str(base)},
        "dataset": write_rows(folder / "rows.jsonl", found[:rows]),
        "method": method,
        "lora": None if method == "full" else {"r": 16, "alpha": 32, "dropout": 0, "target_modules": "all-linear"},
        "options": {"objective": objective},
        "training": {
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": rate,
            "warmup_ratio": 0.05,
            "scheduler": "cosine",
            "seed": 42,
            "max_length": 2048,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
        },
        "threads": len(os.sched_getaffinity(0)),
        "checkpoint": {"every_seconds": None, "every_steps": None, "keep": 1},
        "resume_from": [],
        "converters": str(ROOT / ".local/llama/source"),
        "evaluation": {
            "dataset": write_rows(folder / "held-out.jsonl", found[-held_out:]),
            "prompts": [[{"role": "user", "content": prompt}] for prompt in PROMPTS],
            "answer_tokens": ANSWER_TOKENS,
        },
    }


def run_job(folder: Path, spec: dict, dtype: str | None) -> list[dict]:
    """The events of a trainer's run."""
    (folder / "spec.json").write_text(json.dumps(spec))
    command = ["-c", IN_DTYPE, str(folder), dtype] if dtype else ["-m", "trainer.cli.train", str(folder)]
    # The trainer ends with its stdin.
    reading, writing = os.pipe()
    try:
        result = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            # A trainer yields to every other process by default: on a busy machine this one would hardly run.
            env={"TUNERY_TRAINING_PRIORITY": "normal", **os.environ},
            stdin=reading,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(reading)
        os.close(writing)
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0:
        raise SystemExit(f"The trainer ended with {result.returncode}: {events[-1:]}")
    return events


def independent(folder: Path, job: dict) -> dict:
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, str(ROOT / "tests/numbers/independent.py"), str(folder / "job.json")]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def share(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), 1e-6)


def compare(kind: str, arguments: argparse.Namespace, folder: Path) -> tuple[list[str], list[str]]:
    """A line of the table, and what misses its limit."""
    method, objective, _ = KINDS[kind]
    spec = spec_of(kind, folder, arguments.base, arguments.rows)
    events = run_job(folder, spec, arguments.dtype)
    data = {
        name: [event["data"] for event in events if event["type"] == name] for name in ("metrics", "sample", "result")
    }
    (result,) = data["result"]
    dtype = next(event["data"]["dtype"] for event in events if "dtype" in event["data"])
    steps = dict(pair for event in events for pair in event["data"].get("losses", []))
    norm = next(metrics["grad_norm"] for metrics in data["metrics"] if metrics.get("step") == 1)
    scored = {metrics["step"]: metrics for metrics in data["metrics"] if "validation_loss" in metrics}
    reported = scored[result["step"]]
    alone = independent(
        folder,
        {
            "base": str(arguments.base),
            "method": method,
            "objective": objective,
            "options": {},
            "training": spec["training"],
            "lora": spec["lora"],
            "rows": spec["dataset"]["path"],
            "validation": spec["evaluation"]["dataset"]["path"],
            "prompts": PROMPTS,
            "answer_tokens": ANSWER_TOKENS,
            "result": result["folder"],
            "threads": spec["threads"],
        },
    )
    limit = LOSS_SHARE[dtype]
    delivered, own = alone["delivered"], alone["own"]
    last = [sample for sample in data["sample"] if sample["step"] == max(scored)]
    answers = (
        sum(sample["answer"] == answer for sample, answer in zip(last, alone["answers"], strict=True))
        if max(scored) == result["step"]
        else None
    )
    losses = max(share(steps[step], loss) for step, loss in enumerate(alone["losses"], start=1))
    memory = result["predicted_memory_mb"] / result["peak_memory_mb"] - 1
    misses = [
        f"{kind}: {name} is {found:.3f} away; the limit is {most}"
        for name, found, most in [
            *(
                (f"the reported {name}", share(reported[name], value), REPORTED_SHARE)
                for name, value in delivered.items()
            ),
            ("the loss of a step", losses, limit),
            ("the first gradient", share(norm, alone["first_norm"]), limit),
            ("the result's validation loss", share(delivered["validation_loss"], own["validation_loss"]), 2 * limit),
            ("the predicted memory", abs(memory), MEMORY_SHARE),
        ]
        if found > most
    ]
    if answers is not None and answers < len(PROMPTS):
        misses.append(f"{kind}: {len(PROMPTS) - answers} sample answers are not the result's")
    margin = "validation_reward_margin"
    line = [
        f"{kind}, {dtype}",
        f"{losses:.1%}",
        f"{norm:.4g} ({alone['first_norm']:.4g})",
        f"{reported['validation_loss']:.4f}",
        f"{delivered['validation_loss']:.4f}",
        f"{own['validation_loss']:.4f}",
        f"{reported[margin]:.4f} ({delivered[margin]:.4f})" if margin in delivered else "",
        "" if answers is None else f"{answers} of {len(PROMPTS)}",
        f"{result['peak_memory_mb']} ({memory:+.0%})",
    ]
    return line, misses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--dtype", choices=LOSS_SHARE)
    parser.add_argument("--base", type=Path, default=SMOLLM2)
    parser.add_argument("--folder", type=Path, help="where the runs stay; a temporary folder otherwise")
    arguments = parser.parse_args()
    print(
        "| | step's loss, at most | first gradient | reported | delivered | own loop | margin | answers | memory, MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    missed = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in arguments.only.split(","):
            folder = (arguments.folder or Path(temporary)) / kind
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            line, misses = compare(kind, arguments, folder)
            print("|", " | ".join(line), "|", flush=True)
            missed += misses
    print("\n".join(missed), file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
