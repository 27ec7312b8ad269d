"""Measures what the machine can do at most, with all cores: `python -m bench.support.machine`. Prints one JSON line.

The figures of a benchmark are compared with these: nothing that reads its weights from memory for each token is faster
than memory is read, and nothing that is bound by matrix products is faster than they are.
"""

import json
import os
import time
from collections.abc import Callable

# Larger than the caches of most processors.
READ_BYTES = 512 << 20
SIZES = (2048, 4096)


def best_seconds(work: Callable[[], object], turns: int) -> float:
    """The shortest of several turns, after one that is not counted: others may use the cores, nothing makes them
    faster.
    """
    times = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def limits() -> dict[str, float]:
    """`read_gb_per_s`: bytes read from memory, by a product of a float32 matrix and a vector. `float32`, `bfloat16`,
    `int8`: billions of operations a second (a product of two n x n matrices has 2n³) in torch's matrix products,
    int8 with sums in int32.
    """
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = {"read_gb_per_s": READ_BYTES / best_seconds(reading(torch), 8) / 1e9}
    for name in ("float32", "bfloat16", "int8"):
        found[name] = max(2 * n**3 / best_seconds(product(torch, name, n), 5) / 1e9 for n in SIZES)
    return {name: round(value, 1) for name, value in found.items()}


def reading(torch) -> Callable[[], object]:
    matrix = torch.ones(1024, READ_BYTES // 4096)
    vector = torch.ones(matrix.shape[1])
    return lambda: matrix @ vector


def product(torch, name: str, n: int) -> Callable[[], object]:
    if name == "int8":
        a, b = (torch.randint(-127, 128, (n, n), dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(a, b)
    a, b = (torch.randn(n, n, dtype=getattr(torch, name)) for _ in range(2))
    return lambda: a @ b


def text(found: dict[str, float]) -> str:
    """One line for people."""
    products = ", ".join(f"{found[name]:.0f} in {name}" for name in ("float32", "bfloat16", "int8"))
    return f"This machine reads {found['read_gb_per_s']:.1f} GB/s and computes GFLOPS: {products}"


if __name__ == "__main__":
    print(json.dumps(limits()))
