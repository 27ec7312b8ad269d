"""Seconds and processor seconds of writing the packaged base's adapter for the engine, the first time and later ones.

python -m bench.training.push [--times 8]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

ROOT = Path(__file__).parents[2]
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=8)
    args = parser.parse_args()
    import torch

    from trainer.policy.commands import Commands
    from trainer.runtime.spec import read_command_spec

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = {
            "job_id": "push",
            "base": {"id": BASE, "path": str(ROOT / ".local/models" / BASE / "hf")},
            "method": "lora",
            "lora": {"r": 16, "alpha": 32, "dropout": 0, "target_modules": "all-linear"},
            "start": None,
            "threads": threads,
            "converters": str(ROOT / ".local/llama/source"),
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        commands = Commands(read_command_spec(folder))
        commands.run("create", {"adapter": "policy"})
        seconds, cpu = [], []
        for _ in range(1 + args.times):
            began, cpu_began = time.perf_counter(), time.process_time()
            commands.run("save_weights", {"adapter": "policy", "path": str(folder / "out")})
            seconds.append(round(time.perf_counter() - began, 3))
            cpu.append(round(time.process_time() - cpu_began, 3))
    print(json.dumps({"first": [seconds[0], cpu[0]], "seconds": seconds[1:], "cpu_seconds": cpu[1:]}))
    wall, processor = (statistics.median(times[1:]) for times in (seconds, cpu))
    print(f"median of the later ones: {wall:.3f} s, {processor:.3f} s of processor time")


if __name__ == "__main__":
    main()
