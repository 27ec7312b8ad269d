"""Passes through the base recorded once for each size, and then started on the GPU in two calls: a forward and a
backward one.

A pass through the layers of a small base is thousands of short kernels, and a processor takes longer to start them than
the GPU to
compute them (measured on an H100: 407 ms a step, of which the GPU computed 48).
"""

import torch

from trainer.data.packing import Pack, shared_beginning, size_for, split
from trainer.model.attention import Layout, any_lengths, fits_at_once
from trainer.model.fast_head import HeadLoss

# Padding attends in documents of this length.
FILLER = 512
# Where sharing the beginning saves this part of the tokens it is worth more than recording, which can't share: both are
# seldom needed.
WORTH_SHARING = 0.4
# Rotary positions that are made on the GPU alone; others look at how long the longest row is, and a recording would
# not.
ROPES = {"default", "linear", "llama3", "yarn"}


class Recorded:
    """The base of a model whose layers are `fast_layers`, on a GPU. Gradients are added to those of the parameters."""

    def __init__(self, model: torch.nn.Module, parameters: list[torch.nn.Parameter], device: torch.device) -> None:
        self.body, self.head = model.body_and_head
        self.parameters, self.device = parameters, device
        self.sums = [torch.zeros_like(parameter) for parameter in parameters]
        self.passes: dict[tuple[int, int, int], Pass] = {}
        # What goes in and out between the two calls, of whichever pass.
        self.hidden = self.gradient = torch.empty(0)
        # What graphs need beside each other is one after the other, so all lie in the same memory.
        self.pool = torch.cuda.graph_pool_handle()

    def gradients(self, packed: Pack, targets: int) -> torch.Tensor:
        """The loss of each learned token of a pack that shares nothing; their sum divided by `targets` is what is
        learned.
        """
        recorded = self._pass_for(packed)
        hidden = recorded.forward(packed).index_select(0, packed.chosen).requires_grad_()
        each = HeadLoss.apply(hidden, self.head, packed.next_ids)
        (each.sum() / targets).backward()
        if any(parameter.grad is not added for parameter, added in zip(self.parameters, self.sums, strict=True)):
            torch._foreach_zero_(self.sums)
            for parameter, added in zip(self.parameters, self.sums, strict=True):
                if parameter.grad is not None:
                    added.copy_(parameter.grad)
                parameter.grad = added
        recorded.backward(packed.chosen, hidden.grad)
        return each.detach()

    def _pass_for(self, packed: Pack) -> "Pass":
        tokens, lengths = packed.ids.shape[1], [length for _, length in packed.layout.blocks]
        size = size_for(tokens)
        documents, longest = 16, FILLER
        while documents < len(lengths) + -(-(size - tokens) // FILLER):
            documents *= 2
        while longest < max(lengths):
            longest *= 2
        key = (size, documents, longest)
        if key not in self.passes:
            if len(self.hidden) < size:
                # Passes that are recorded already keep theirs: all of them together are less than twice the largest.
                rows = 1 << (size - 1).bit_length()
                self.hidden, self.gradient = (self.head.new_empty(rows, self.head.shape[1]) for _ in range(2))
            self.passes[key] = Pass(self, *key)
        return self.passes[key]


class Pass:
    """One size of pass. What it reads is copied to where the recording found it: `ids`, `positions`, `ends`, and
    `gradient`.
    """

    def __init__(self, owner: Recorded, size: int, documents: int, longest: int) -> None:
        device, self.size, self.documents = owner.device, size, documents
        self.ids = torch.zeros(1, size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(1, size, dtype=torch.int64, device=device)
        self.ends = torch.full((documents + 1,), size, dtype=torch.int32, device=device)
        self.ends[:-1] = torch.arange(documents, device=device).mul_(FILLER).clamp_(max=size)
        layout = Layout(0, None, None, None, None, None, [(1, longest)], self.ends)
        where = {"position_ids": self.positions, "layout": layout, "use_cache": False}
        self.hidden, self.gradient = owner.hidden[:size], owner.gradient[:size]
        self.ahead, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # A kernel that is first used here is loaded here, which the default mode forbids.
        how = {"pool": owner.pool, "capture_error_mode": "relaxed"}
        with torch.enable_grad():
            with torch.cuda.graph(self.ahead, **how):
                hidden = owner.body(input_ids=self.ids, **where).last_hidden_state[0]
                self.hidden.copy_(hidden.detach())
            with torch.cuda.graph(self.back, **how):
                torch._foreach_add_(owner.sums, torch.autograd.grad(hidden, owner.parameters, self.gradient))

    def forward(self, packed: Pack) -> torch.Tensor:
        """Hidden states [size, width]; those after the pack's are padding's."""
        tokens = packed.ids.shape[1]
        ends = packed.layout.ends
        self.ids[:, :tokens], self.positions[:, :tokens] = packed.ids, packed.positions
        self.ids[:, tokens:] = 0
        self.positions[:, tokens:] = 0
        self.ends[: len(ends)] = ends
        filler = torch.arange(1, self.documents + 2 - len(ends), device=ends.device, dtype=torch.int32).mul_(FILLER)
        self.ends[len(ends) :] = filler.add_(tokens).clamp_(max=self.size)
        self.ahead.replay()
        return self.hidden

    def backward(self, chosen: torch.Tensor, gradient: torch.Tensor) -> None:
        self.gradient.zero_()
        self.gradient[chosen] = gradient
        self.back.replay()


def worthwhile(model: torch.nn.Module, batches: list[list], limits, device: torch.device) -> bool:
    """Whether a run's passes are to be recorded: on a GPU, where the layers are `fast_layers` and rows do not begin
    alike for long.
    """
    if not any_lengths(device) or not hasattr(model, "body_and_head"):
        return False
    body, head = model.body_and_head
    if body.rotary_emb.rope_type not in ROPES or not fits_at_once(head.dtype, body.layers[0].self_attn.head_dim):
        return False
    groups = [group for batch in batches for group in split(batch, limits)]
    saved = sum(shared_beginning(group) * (len(group) - 1) for group in groups)
    return saved < WORTH_SHARING * sum(len(sequence.ids) for group in groups for sequence in group)
