"""Adapters computed together with their frozen layers: the same mathematics as peft's modules, in far fewer products.

Layers that read the same input (q, k and v; gate and up) become one product, and their A matrices ride along as more of its rows.
"""

import torch
from peft.tuners.lora.layer import Linear

# Layers of one parent that are always given the same input.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Group:
    """Layers that share their input, in one matrix [outputs of all + rank of all, inputs] in the base's precision: every W, then every A.

    The frozen weights, and A where its precision is the base's, become views of that matrix, so nothing is held twice.
    """

    def __init__(self, layers: list[Linear]) -> None:
        bases = [layer.get_base_layer() for layer in layers]
        self.downs = [layer.lora_A["default"].weight for layer in layers]
        self.ups = [layer.lora_B["default"].weight for layer in layers]
        self.scales = [layer.scaling["default"] for layer in layers]
        self.outputs = [base.weight.shape[0] for base in bases]
        self.ranks = [down.shape[0] for down in self.downs]
        matrices = [base.weight for base in bases] + self.downs
        self.matrix = torch.cat([matrix.detach().to(bases[0].weight.dtype) for matrix in matrices])
        parts = self.matrix.split([*self.outputs, *self.ranks])
        for part, base in zip(parts, bases, strict=False):
            base.weight.data = part
        # Views follow the optimizer's steps by themselves; copies in a narrower precision are made again for each pass.
        self.copies = []
        for part, down in zip(parts[len(bases) :], self.downs, strict=True):
            if down.dtype == part.dtype:
                down.data = part
            else:
                self.copies.append((part, down))
        self.bias = None
        if any(base.bias is not None for base in bases):
            biases = [torch.zeros_like(base.weight[:, 0]) if base.bias is None else base.bias.detach() for base in bases]
            self.bias = torch.cat([*biases, self.matrix.new_zeros(sum(self.ranks))])
        self.waiting: dict[int, torch.Tensor] = {}
        self.input: tuple[torch.Tensor, int] | None = None
        for index, layer in enumerate(layers):
            layer.forward = self._forward_of(index)

    def split(self, joint: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The outputs' columns of each layer, and the columns of all ranks."""
        *outputs, low = joint.split([*self.outputs, sum(self.ranks)], dim=1)
        return outputs, low

    def _forward_of(self, index: int):
        def forward(x: torch.Tensor) -> torch.Tensor:
            # The first layer asked computes for all; the others find their result if it is the very same input.
            if index not in self.waiting or self.input is None or self.input[0] is not x or self.input[1] != x._version:
                for part, down in self.copies:
                    part.copy_(down.detach())
                self.input = (x, x._version)
                self.waiting = dict(enumerate(Adapted.apply(x, self, *self.downs, *self.ups)))
            result = self.waiting.pop(index)
            if not self.waiting:
                self.input = None
            return result

        return forward


class Adapted(torch.autograd.Function):
    """y = x W^T + b + scale (x A^T) B^T for each layer of a group, with gradients for x, A and B alone.

    Shapes: x [..., inputs], W [outputs, inputs], b [outputs] or none, A [rank, inputs], B [outputs, rank].
    """

    @staticmethod
    def forward(ctx, x, group: Group, *adapters):
        flat = x.reshape(-1, x.shape[-1])
        outputs, low = group.split(torch.nn.functional.linear(flat, group.matrix, group.bias))
        ups = [up.to(flat.dtype) for up in adapters[len(group.downs) :]]
        for y, part, up, scale in zip(outputs, low.split(group.ranks, dim=1), ups, group.scales, strict=True):
            y.addmm_(part, up.T, alpha=scale)
        ctx.save_for_backward(flat, low.contiguous(), *ups)
        ctx.group, ctx.shape = group, x.shape
        return tuple(y.view(*x.shape[:-1], -1) for y in outputs)

    @staticmethod
    def backward(ctx, *gradients):
        flat, low, *ups = ctx.saved_tensors
        group, kinds = ctx.group, ctx.group.downs[0].dtype
        joint = flat.new_empty(len(flat), len(group.matrix))
        outputs, lows = group.split(joint)
        up_gradients = []
        for gradient, y, part, low_gradient, up, scale in zip(
            gradients, outputs, low.split(group.ranks, dim=1), lows.split(group.ranks, dim=1), ups, group.scales, strict=True
        ):
            y.copy_(gradient.reshape(y.shape))
            torch.addmm(low_gradient, y, up, beta=0, alpha=scale, out=low_gradient)
            up_gradients.append((y.T @ part).to(kinds).mul_(scale))
        down_gradients = (lows.T @ flat).to(kinds).split(group.ranks)
        x_gradient = (joint @ group.matrix).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return x_gradient, None, *down_gradients, *up_gradients


def install(model: torch.nn.Module) -> int:
    """Replaces the forward pass of every plain LoRA layer; returns how many.

    Layers that are more than x W^T + scale * x A^T B^T (dropout, variants, quantized bases) keep peft's own.
    """
    replaced = 0
    for parent in model.modules():
        plain = {name: child for name, child in parent.named_children() if type(child) is Linear and _plain(child)}
        groups = [[plain.pop(name) for name in names] for names in TOGETHER if all(name in plain for name in names)]
        for layers in [*groups, *([layer] for layer in plain.values())]:
            Group(layers)
            replaced += len(layers)
    return replaced


def _plain(module: Linear) -> bool:
    base = module.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and list(module.active_adapters) == ["default"]
        and not module.lora_variant
        and isinstance(module.lora_dropout["default"], torch.nn.Identity)
        and not base.weight.requires_grad
        and module.lora_B["default"].bias is None
    )
