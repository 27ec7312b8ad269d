"""Predicts a run's memory from its sizes, before anything large is loaded."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from trainer.data.dataset import Prepared, Row, Sequence
from trainer.data.packing import Limits, padded_size, shared_prefix, split
from trainer.data.sight import Sight, is_vision
from trainer.model import kernels, projector
from trainer.model.experts import expert_modules, stacked
from trainer.model.fast_head import CHUNK_TOKENS
from trainer.model.fast_layers import FAMILY
from trainer.runtime import process_memory
from trainer.runtime.errors import JobError
from trainer.runtime.spec import ModelSpec, Spec

# Python with torch, transformers, peft and bitsandbytes imported; measured.
PROGRAM_BYTES = 480e6
# What loading a base leaves resident of its file, where weights stay in it.
FILE_BYTES = 300e6
# What the heap takes of the system for each byte that passes save: holes between them; measured.
HEAP_FACTOR = 1.2
# Buffers of experts' products, whatever the number of tokens; measured.
EXPERTS_BYTES = 200e6
# cuBLAS's workspaces, and the memory of loaded kernels.
GPU_BYTES = 600e6
# How many experts a token is sent to, as families call it.
CHOSEN = ("num_experts_per_tok", "top_k_experts", "moe_k")
# Families of the trainer's own layers that have norms of each head of q and k.
HEAD_NORMS = ("Qwen3",)
# The decoder layers of vision bases, by the model type of their language model.
TEXT_FAMILIES = {"llama": "Llama", "qwen2_vl_text": "Qwen2VL", "qwen2_5_vl_text": "Qwen2_5_VL"}


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a base that decide its memory: counts of weights, and widths in numbers."""

    weights: int
    layers: int
    hidden_size: int
    mlp_size: int
    qkv_size: int
    vocabulary: int
    family: str
    # The parts that see or hear, which are never trained but for a projector.
    vision_weights: int = 0
    projector_weights: int = 0
    # Numbers that the projector reads for a vector of a picture.
    projector_inputs: int = 0
    # A mixture's: weights of all experts, and those that a rank of their adapters takes; the width of those that a
    # token is sent to, together, and their count.
    expert_weights: int = 0
    expert_lora: int = 0
    expert_size: int = 0
    experts_chosen: int = 0
    # Weights that a rank of adapters of all its linear layers takes.
    linear_lora: int = 0
    # Embeddings of each layer, beside those of the vocabulary (Gemma 3n, Gemma 4).
    layer_embeddings: int = 0
    # Weights of the head, where it does not share them with the embeddings.
    head_weights: int = 0
    # Width of attention's result.
    attended_size: int = 0


def shape_of(config: Any) -> ModelShape:
    """Reads the sizes from a transformers configuration of a decoder, or of a vision base with one."""
    tied, family = config.tie_word_embeddings, (config.architectures or [""])[0].removesuffix("ForCausalLM")
    sees = is_vision(config)
    trainable = config.model_type in projector.PATHS
    projector_sizes = (projector.parameters(config), projector.row_width(config)) if trainable else (0, 0)
    whole, config = config, config.get_text_config()
    if sees or config is not whole:
        family = TEXT_FAMILIES.get(config.model_type, "")
    heads = config.num_attention_heads
    size = _largest(config, "head_dim") or config.hidden_size // heads
    qkv_size = size * (heads + 2 * (_largest(config, "num_key_value_heads") or heads))
    hidden_size, mlp_size, layers, vocabulary = (
        config.hidden_size,
        _widest(config),
        config.num_hidden_layers,
        config.vocab_size,
    )
    vision_weights, experts, linear_lora = 0, (0, 0, 0, 0), 0
    table = getattr(config, "vocab_size_per_layer_input", 0) * (getattr(config, "hidden_size_per_layer_input", 0) or 0)
    if f"{family}DecoderLayer" in FAMILY:
        per_layer = hidden_size * qkv_size + heads * size * hidden_size + 3 * hidden_size * mlp_size
        weights = layers * per_layer + vocabulary * hidden_size * (1 if tied else 2)
        vision_weights = _tower_weights(whole.vision_config) if sees else 0
    else:
        # Layers of a state or a convolution, experts, gates and norms: counted, not computed from widths.
        weights, vision_weights, linear, mixture = _counted(whole)
        if mixture:
            experts, linear_lora, family = mixture, linear, ""
            # What a layer's linear layers have beside attention: shared experts.
            mlp_size = max(0, (linear_lora // layers - 7 * hidden_size - qkv_size - heads * size) // 3)
    return ModelShape(
        weights,
        layers,
        hidden_size,
        mlp_size,
        qkv_size,
        vocabulary,
        family,
        vision_weights,
        *projector_sizes,
        *experts,
        linear_lora,
        layers * table,
        0 if tied else vocabulary * hidden_size,
        heads * size,
    )


def _largest(config: Any, name: str) -> int:
    """A number that may differ between layers (Gemma 4), of the layer that has most; 0 if the family lacks it."""
    if not config.is_heterogeneous:
        return getattr(config, name, None) or 0
    return max(getattr(layer, name, None) or 0 for layer in config.per_layer_config)


def _widest(config: Any) -> int:
    """The width of the widest MLP: some families have one for each layer, or of experts alone."""
    sizes: Any = getattr(config, "intermediate_size", None) or getattr(config, "moe_intermediate_size", None)
    return sizes if isinstance(sizes, int) else max(sizes or [4 * config.hidden_size])


def _counted(config: Any) -> tuple[int, int, int, tuple[int, int, int, int] | None]:
    """The weights of a base's language model and of its other parts, those that a rank takes for its linear layers, and
    of its experts what ModelShape has: None without any.
    """
    text = config.get_text_config()
    chosen = next((getattr(text, name) for name in CHOSEN if getattr(text, name, None)), 0)
    wraps = is_vision(config) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    kind: Any = AutoModelForImageTextToText if wraps else AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = kind.from_config(config)
    decoder, head = model.get_decoder(), model.get_output_embeddings().weight
    # Some families' decoder has the head, too.
    weights = _numbers((*decoder.parameters(), head))
    vision_weights = _numbers(model.parameters()) - weights
    layers: list[torch.nn.Linear] = [
        layer for name, layer in decoder.named_modules() if type(layer) is torch.nn.Linear and "layers." in name
    ]
    linear = sum(layer.in_features + layer.out_features for layer in layers)
    modules = [module for _, module in expert_modules(model)] if chosen else []
    shapes = [getattr(module, name).shape for module in modules for name in stacked(module)]
    if not shapes:
        return weights, vision_weights, linear, None
    lora = sum(experts * (rows + columns) for experts, rows, columns in shapes)
    width = min(getattr(modules[0], stacked(modules[0])[-1]).shape[-2:])
    return weights, vision_weights, linear, (sum(shape.numel() for shape in shapes), lora, chosen * width, chosen)


def _numbers(parameters: Iterable[torch.Tensor]) -> int:
    """How many numbers these have; what is shared counts once."""
    return sum({id(parameter): parameter.numel() for parameter in parameters}.values())


def _tower_sizes(config: Any) -> tuple[int, int]:
    """The width of a vision tower and of its MLPs, from its configuration."""
    # Qwen2-VL's `hidden_size` is that of the language model.
    width = getattr(config, "embed_dim", None) or config.hidden_size
    return width, getattr(config, "intermediate_size", None) or round(width * config.mlp_ratio)


def _tower_weights(config: Any) -> int:
    """The weights of a vision tower's layers."""
    width, mlp_size = _tower_sizes(config)
    layers = getattr(config, "depth", None) or config.num_hidden_layers
    return layers * (4 * width * width + 3 * width * mlp_size)


def largest_pack(rows: Prepared, spec: Spec, limits: Limits, device: torch.device) -> tuple[int, int, int]:
    """Tokens and learned tokens of the largest pass that any batch can need, and the passes of its batch: the one with
    the longest rows.
    """
    longest = sorted(rows.rows, key=lambda row: -row.tokens)[: spec.training.batch_size]
    packs: list[list[Sequence]] | list[list[Row]]
    if spec.options.objective == "sft":
        packs = split([sequence for row in longest for sequence in row.sequences], limits)
    else:
        # A pass computes rows of preferences whole.
        packs = split(longest, limits)
    # The prompt of a pair is computed once; with CUDA graphs it is not.
    shares = spec.options.objective == "dpo" and limits.documents is None and device.type == "cpu"

    def computed(part: Sequence | Row) -> int:
        return part.tokens - (shared_prefix(part.sequences) if shares and isinstance(part, Row) else 0)

    tokens = max(sum(map(computed, pack)) for pack in packs)
    return tokens, max(sum(row.targets for row in pack) for pack in packs), len(packs)


def head_in_chunks(shape: ModelShape, spec: ModelSpec) -> bool:
    """Whether the head's logits exist only for some learned tokens at a time (trainer/model/fast_head.py)."""
    return spec.method != "full" and f"{shape.family}DecoderLayer" in FAMILY


def predicted_bytes(
    shape: ModelShape,
    spec: ModelSpec,
    dtype_bytes: int,
    tokens: int,
    targets: int,
    device: torch.device,
    encoding: float = 0,
    passes: int = 2,
    ranks: int = 1,
) -> float:
    """Peak bytes on the device of a run whose largest pass has `tokens` tokens and `targets` learned ones. `encoding`:
    bytes that the largest picture takes, which is encoded before the first pass. `passes`: of that pass's batch.
    `ranks`: devices that share the weights; the bytes are those of each.
    """
    on_gpu = device.type == "cuda"
    embeddings, gradients = shape.vocabulary * shape.hidden_size, 0
    # The trainer's own layers with their kernels.
    fast = not on_gpu and head_in_chunks(shape, spec) and kernels.available(device, torch.bfloat16) and dtype_bytes == 2
    if spec.method == "full":
        # Weights and two moments in float32, and the bf16 copies for a pass.
        states, gradients = (12 if dtype_bytes == 4 else 14) * shape.weights, 4 * shape.weights
        if on_gpu:
            dtype_bytes = 2
    else:
        assert spec.lora, "the spec of an adapter has its shape"
        weight_bytes = 0.55 if spec.method == "qlora" else dtype_bytes
        adapters = shape.layers * spec.lora.r * 2 * (4 * shape.hidden_size + shape.qkv_size + 3 * shape.mlp_size)
        if shape.experts_chosen:
            adapters = spec.lora.r * (shape.linear_lora + shape.expert_lora * spec.lora.experts)
        # Experts and tables are not linear layers, and heads are never quantized, so they stay as they are.
        whole = embeddings + shape.head_weights + shape.expert_weights + shape.layer_embeddings
        states = weight_bytes * (shape.weights - whole) + dtype_bytes * whole + 16 * adapters
    if shape.experts_chosen and not on_gpu:
        states += EXPERTS_BYTES
    # It stays in the precision that it is loaded in.
    states += (4 if spec.method == "full" else dtype_bytes) * shape.vision_weights
    if spec.projector:
        # Weights, gradients and two moments in float32, beside the base's own.
        states += 16 * shape.projector_weights
    # What a layer saves of each token for the backward pass: the residual stream twice and its norms, q, k and v, the
    # gated pair and product.
    if on_gpu:
        saved = 2 * shape.hidden_size * 4 + (3 * shape.hidden_size + shape.qkv_size + 3 * shape.mlp_size) * dtype_bytes
        transient = 8 * shape.hidden_size * 4 + 6 * shape.mlp_size * dtype_bytes
        if head_in_chunks(shape, spec):
            tokens = padded_size(tokens)
        else:
            # transformers' layers save more; the factor is measured.
            saved *= 4 / 3
    elif fast:
        # The residual stream twice in float32; all else in bfloat16: q, k, v and attention's result, the gated pair,
        # the inputs of the four products, and q and k before their norms.
        saved = 12 * shape.hidden_size + 2 * shape.qkv_size + 2 * shape.attended_size + 6 * shape.mlp_size
        if shape.family in HEAD_NORMS:
            saved += shape.qkv_size + shape.attended_size
        saved *= HEAP_FACTOR
        transient = 8 * shape.hidden_size * 4 + 6 * shape.mlp_size * dtype_bytes
    else:
        # torch's attention keeps q, k and v in float32, and once more in rows of its own order.
        saved = (4 * shape.hidden_size + 3 * shape.qkv_size) * 4 + (
            3 * shape.mlp_size + 2 * shape.hidden_size
        ) * dtype_bytes
        transient = 8 * shape.hidden_size * 4 + 6 * shape.mlp_size * dtype_bytes
    # The same of experts: their inputs, the gated pair and product, and outputs; with adapters in float32.
    adapted = shape.experts_chosen > 0 and spec.lora is not None and spec.lora.experts
    number = 4 if adapted or spec.method == "full" else dtype_bytes
    saved += shape.experts_chosen * shape.hidden_size * (dtype_bytes + 2 * number) + 6 * shape.expert_size * number
    # One layer at a time also needs transient memory in its backward pass.
    activations = tokens * (shape.layers * saved + transient)
    if spec.projector:
        # What it reads, as kept and in float32, and one product of that size; at most every token is a vector.
        activations += tokens * shape.projector_inputs * (dtype_bytes + 8)
    shared = ranks > 1
    if shared:
        # Embeddings and head are whole, as if they were two; of the layers a part, one that computes, and one that is
        # gathered ahead, with the buffer that it is gathered in.
        layered = shape.weights - embeddings - shape.layer_embeddings
        states += dtype_bytes * (layered / ranks + 3 * layered / shape.layers - layered + embeddings)
        # Layers keep their inputs, and compute the rest again, one at a time.
        activations = tokens * (shape.layers * shape.hidden_size * dtype_bytes + saved + transient)
    # The head's logits of learned tokens: as computed, in float32, their gradients and the softmax in between. A frozen
    # head of the family computes them in chunks.
    if head_in_chunks(shape, spec) and not shared:
        targets = min(targets, CHUNK_TOKENS[device.type])
    logits = targets * shape.vocabulary * (dtype_bytes + 12)
    largest = max(activations + logits, encoding)
    # Gradients take the place of what their forward pass saved. Those of an earlier pass are beside it.
    working = max(gradients, largest) if passes == 1 and not on_gpu else gradients + largest
    program = GPU_BYTES if on_gpu else PROGRAM_BYTES + (0 if fast or spec.method == "qlora" else FILE_BYTES)
    return program + states + working


def encoding_bytes(sight: Sight | None, dtype_bytes: int) -> float:
    """Bytes that the largest picture takes while the vision tower reads it: a layer's states and its pixels."""
    if not sight or not sight.pictures:
        return 0
    vision = sight.config.vision_config
    patches = max(sight.shown(picture).vectors for picture, _ in sight.pictures.values()) * sight.patches_a_vector
    width, mlp_size = _tower_sizes(vision)
    return patches * ((3 * mlp_size + 8 * width) * dtype_bytes + 3 * 3 * 4 * vision.patch_size**2)


def available_bytes(device: torch.device) -> int:
    """Bytes that this process may still allocate: the GPU's free memory, or the machine's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else process_memory.available_bytes()


def peak_bytes(device: torch.device) -> int:
    """Peak bytes of this process so far: reserved GPU memory, or resident memory."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else process_memory.peak_bytes()


def held_bytes(device: torch.device) -> int:
    """Bytes that this process holds now: reserved GPU memory, or resident memory."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else process_memory.resident_bytes()


# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_heap(device: torch.device) -> None:
    """Keeps freed memory in the process until `trim_heap`: otherwise each step returns and gets back hundreds of
    megabytes, whose pages the kernel clears, a seventh of a step of 2,048 tokens.
    """
    # musl and macOS do not have it.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if device.type == "cpu" and mallopt:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def trim_heap(above: float, device: torch.device) -> bool:
    """Returns free heap memory to the system if more than `above` bytes are resident: batches of changing lengths
    fragment the CPU's heap with every step. True if it did.
    """
    return device.type == "cpu" and process_memory.resident_bytes() > above and process_memory.return_freed()


LOWER = "Lower batch_size or shorten the longest rows, take qlora or a smaller base."


def require_fits(predicted: float, available: float, advice: str = LOWER) -> None:
    """Raises JobError("out_of_memory") with the numbers, and what to do, if the run cannot fit."""
    if predicted > available:
        numbers = f"about {predicted / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free"
        raise JobError(
            "out_of_memory",
            f"The run would take {numbers}. {advice}",
            predicted_mb=round(predicted / 1e6),
            available_mb=round(available / 1e6),
        )
