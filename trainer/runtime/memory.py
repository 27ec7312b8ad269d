"""How much memory a run takes, told from its numbers before anything large is loaded."""

import ctypes
from dataclasses import dataclass

import torch

from trainer.data.dataset import Prepared
from trainer.data.packing import Limits, size_for, split
from trainer.model.fast_head import PIECES
from trainer.model.fast_layers import FAMILY
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Spec

# Python with torch, transformers and peft imported.
PROGRAM_BYTES = 600e6
# cuBLAS's workspaces, and what its kernels take as they are loaded.
GPU_BYTES = 600e6


@dataclass(frozen=True)
class Shape:
    """What of a base decides its memory: counts of weights, and widths in numbers."""

    weights: int
    layers: int
    width: int
    wide: int
    attention: int
    vocabulary: int
    family: str


def shape_of(config) -> Shape:
    """From a transformers configuration of a decoder."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = size * (heads + 2 * (getattr(config, "num_key_value_heads", None) or heads))
    width, wide, layers, vocabulary = (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.vocab_size,
    )
    per_layer = width * attention + heads * size * width + 3 * width * wide
    embeddings = vocabulary * width * (1 if config.tie_word_embeddings else 2)
    family = (config.architectures or [""])[0].removesuffix("ForCausalLM")
    return Shape(layers * per_layer + embeddings, layers, width, wide, attention, vocabulary, family)


def largest_pack(rows: Prepared, batch_size: int, limits: Limits) -> tuple[int, int]:
    """Tokens and learned tokens of the largest pass that a batch can make: that of the longest rows."""
    longest = sorted(rows.rows, key=lambda row: -row.tokens)[:batch_size]
    packs = split([sequence for row in longest for sequence in row.sequences], limits)
    return max(sum(len(each.ids) for each in pack) for pack in packs), max(
        sum(each.targets for each in pack) for pack in packs
    )


def head_in_pieces(shape: Shape, spec: Spec) -> bool:
    return spec.method != "full" and f"{shape.family}DecoderLayer" in FAMILY


def predicted_bytes(
    shape: Shape, spec: Spec, dtype_bytes: int, tokens: int, targets: int, device: torch.device
) -> float:
    """Peak bytes on the device of a run whose largest pass has `tokens` tokens and learns `targets` of them."""
    on_gpu = device.type == "cuda"
    embeddings = shape.vocabulary * shape.width
    if spec.method == "full":
        # Weights, gradients and two moments in float32; on a GPU the copies in bf16 that a pass computes with.
        states = (18 if on_gpu else 16) * shape.weights
        dtype_bytes = 2 if on_gpu else 4
    else:
        weight_bytes = 0.55 if spec.method == "qlora" else dtype_bytes
        adapters = shape.layers * spec.lora.r * 2 * (4 * shape.width + shape.attention + 3 * shape.wide)
        states = weight_bytes * (shape.weights - embeddings) + dtype_bytes * embeddings + 16 * adapters
    # What a layer keeps of a token for its backward pass: the residual stream twice and its norms, q, k and v, the
    # gated pair and product.
    if on_gpu:
        kept = 2 * shape.width * 4 + (3 * shape.width + shape.attention + 3 * shape.wide) * dtype_bytes
        passing = 8 * shape.width * 4 + 6 * shape.wide * dtype_bytes
        if head_in_pieces(shape, spec):
            tokens = size_for(tokens)
        else:
            # transformers' layers keep more: measured, not counted.
            kept *= 4 / 3
    else:
        kept = (4 * shape.width + 2 * shape.attention) * 4 + (3 * shape.wide + 2 * shape.width) * dtype_bytes
        passing = 0
    # And what one layer at a time needs besides, on its way back.
    activations = tokens * (shape.layers * kept + passing)
    # The head's results for learned tokens: as computed, in float32, their gradients and the softmax in between. A
    # frozen head of the family takes them piece by piece.
    if head_in_pieces(shape, spec):
        targets = min(targets, PIECES[device.type])
    logits = targets * shape.vocabulary * (dtype_bytes + 12)
    return (GPU_BYTES if on_gpu else PROGRAM_BYTES) + states + activations + logits


def available_bytes(device: torch.device) -> int:
    """What this process may still take: the GPU's free memory; the machine's available memory, or what is left to its
    control group.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with open("/proc/meminfo") as file:
        found = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as now:
            limit = most.read().strip()
            return found if limit == "max" else min(found, int(limit) - int(now.read()))
    except OSError:
        return found


def peak_bytes(device: torch.device) -> int:
    """The most that this process has held so far: of the GPU's memory, or resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def give_back(above: float, device: torch.device) -> bool:
    """Where more is resident than that, returns what the CPU's allocator keeps in pieces too small to use: batches of
    changing lengths
    leave more of them with every step. True where it did; it takes tens of milliseconds."""
    if device.type != "cpu" or resident_bytes() <= above:
        return False
    # musl, macOS have no such thing.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim and trim(0))


def require(predicted: float, available: float) -> None:
    """Raises JobError("out_of_memory") with the numbers where the run cannot fit."""
    if predicted > available:
        message = (
            f"The run would take about {predicted / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free. "
            "Lower batch_size or shorten the longest rows, take qlora or a smaller base."
        )
        raise JobError(
            "out_of_memory", message, predicted_mb=round(predicted / 1e6), available_mb=round(available / 1e6)
        )
