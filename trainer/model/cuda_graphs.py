"""CUDA graphs of passes through the base: one forward and one backward graph for each padded size, captured once and
replayed.

A pass through the layers of a small base is thousands of short kernels, and the CPU takes longer to launch them than
the GPU to compute them (measured on an H100: 407 ms a step, 48 of them on the GPU).
"""

from collections.abc import Callable
from typing import Any

import torch

from trainer.data.dataset import Sequence
from trainer.data.layout import Layout, supports_varlen
from trainer.data.packing import Limits, Pack, padded_size, shared_prefix, split
from trainer.model.attention import fits_varlen
from trainer.model.fast_head import HeadLoss
from trainer.model.model import Model

# Padding attends in documents of this length.
PADDING_LENGTH = 512
# If sharing the prefix saves this fraction of the tokens, it is worth more than CUDA graphs, which cannot share. Rows
# rarely need both.
MAX_SHARED = 0.4
# Rotary embeddings computed on the GPU alone. Others read the longest row's length on the CPU, which a graph does not
# replay.
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}


class CudaGraphs:
    """CUDA graphs of a model's base whose layers are `fast_layers`. Adds gradients to those of the parameters."""

    def __init__(self, model: Model, parameters: list[torch.nn.Parameter], device: torch.device) -> None:
        self.body, self.head = model.body_and_head
        self.parameters, self.device = parameters, device
        self.gradient_sums = [torch.zeros_like(parameter) for parameter in parameters]
        self.captured: dict[tuple[int, int, int], CapturedPass] = {}
        # Input and output buffers between the forward and the backward graph, shared by all sizes.
        self.hidden = self.gradient = torch.empty(0)
        # Graphs run one after the other, so all share one memory pool.
        self.pool = torch.cuda.graph_pool_handle()

    def gradients(self, packed: Pack, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Adds the gradients of a loss that `loss_of` makes of the loss of each learned token [targets] of a pack
        without a shared prefix.
        """
        captured_pass = self._captured_for(packed)
        hidden = captured_pass.forward(packed).index_select(0, packed.chosen).requires_grad_()
        loss_of(HeadLoss.apply(hidden, self.head, packed.next_ids)).backward()
        if any(
            parameter.grad is not gradient_sum
            for parameter, gradient_sum in zip(self.parameters, self.gradient_sums, strict=True)
        ):
            torch._foreach_zero_(self.gradient_sums)
            for parameter, gradient_sum in zip(self.parameters, self.gradient_sums, strict=True):
                if parameter.grad is not None:
                    gradient_sum.copy_(parameter.grad)
                parameter.grad = gradient_sum
        assert hidden.grad is not None, "the loss depends on it"
        captured_pass.backward(packed.chosen, hidden.grad)

    def _captured_for(self, packed: Pack) -> "CapturedPass":
        tokens, lengths = packed.ids.shape[1], [length for _, length in packed.layout.blocks]
        size = padded_size(tokens)
        documents, longest = 16, PADDING_LENGTH
        while documents < len(lengths) + -(-(size - tokens) // PADDING_LENGTH):
            documents *= 2
        while longest < max(lengths):
            longest *= 2
        key = (size, documents, longest)
        if key not in self.captured:
            if len(self.hidden) < size:
                # Passes captured earlier keep their own buffers: all together they are less than twice the largest.
                rows = 1 << (size - 1).bit_length()
                self.hidden, self.gradient = (self.head.new_empty(rows, self.head.shape[1]) for _ in range(2))
            self.captured[key] = CapturedPass(self, *key)
        return self.captured[key]


class CapturedPass:
    """The graphs of one size. Inputs are copied to the addresses that were captured: `ids`, `positions`, `ends` and
    `gradient`.
    """

    def __init__(self, owner: CudaGraphs, size: int, documents: int, longest: int) -> None:
        device, self.size, self.documents = owner.device, size, documents
        self.ids = torch.zeros(1, size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(1, size, dtype=torch.int64, device=device)
        self.ends = torch.full((documents + 1,), size, dtype=torch.int32, device=device)
        self.ends[:-1] = torch.arange(documents, device=device).mul_(PADDING_LENGTH).clamp_(max=size)
        layout = Layout(0, None, None, None, None, None, [(1, longest)], self.ends)
        inputs = {"position_ids": self.positions, "layout": layout, "use_cache": False}
        self.hidden, self.gradient = owner.hidden[:size], owner.gradient[:size]
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # The first use of a kernel loads it, which the default capture mode forbids.
        capture_options: dict[str, Any] = {"pool": owner.pool, "capture_error_mode": "relaxed"}
        with torch.enable_grad():
            with torch.cuda.graph(self.forward_graph, **capture_options):
                hidden = owner.body(input_ids=self.ids, **inputs).last_hidden_state[0]
                self.hidden.copy_(hidden.detach())
            with torch.cuda.graph(self.backward_graph, **capture_options):
                torch._foreach_add_(owner.gradient_sums, torch.autograd.grad(hidden, owner.parameters, self.gradient))

    def forward(self, packed: Pack) -> torch.Tensor:
        """Hidden states [size, width]; rows after the pack's tokens belong to padding."""
        tokens, ends = packed.ids.shape[1], packed.layout.ends
        assert ends is not None, "worth_capturing requires variable-length attention"
        self.ids[:, :tokens], self.positions[:, :tokens] = packed.ids, packed.positions
        self.ids[:, tokens:] = 0
        self.positions[:, tokens:] = 0
        self.ends[: len(ends)] = ends
        padding_ends = torch.arange(1, self.documents + 2 - len(ends), device=ends.device, dtype=torch.int32).mul_(
            PADDING_LENGTH
        )
        self.ends[len(ends) :] = padding_ends.add_(tokens).clamp_(max=self.size)
        self.forward_graph.replay()
        return self.hidden

    def backward(self, chosen: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds the parameters' gradients. `gradient`: that of the hidden states [targets, width] at `chosen`."""
        self.gradient.zero_()
        self.gradient[chosen] = gradient
        self.backward_graph.replay()


def worth_capturing(model: Model, batches: list[list[Sequence]], limits: Limits, device: torch.device) -> bool:
    """Whether to use CUDA graphs: on a GPU, with `fast_layers`, if rows share no long prefix."""
    layers = getattr(model, "fast_layers", [])
    if not supports_varlen(device) or not layers or not hasattr(model, "body_and_head"):
        return False
    body, head = model.body_and_head
    # Gemma 3 has one for each type of layer.
    kind = getattr(body.rotary_emb, "rope_type", None)
    # A scale of queries depends on the longest row, which is read on the CPU too.
    static = isinstance(kind, str) and kind in STATIC_ROPES and not any(layer.query_growth for layer in layers)
    if not static or not all(fits_varlen(head.dtype, layer.head_size) for layer in layers):
        return False
    groups = [group for batch in batches for group in split(batch, limits)]
    saved = sum(shared_prefix(group) * (len(group) - 1) for group in groups)
    return saved < MAX_SHARED * sum(len(sequence.ids) for group in groups for sequence in group)
