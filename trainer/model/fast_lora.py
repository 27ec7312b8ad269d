"""LoRA adapters fused with their frozen layers: the same mathematics as peft's modules, with far fewer matrix products.

Layers with the same input (q, k and v; gate and up) become one product, and their A matrices are more rows of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora.layer import Linear, LoraLayer

from trainer.model import gpu_kernels, kernels, quantized

# Layers of one parent that always get the same input.
SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


# Whether the adapters are zero: set by `zero_adapters_skipped`.
_zero = False


@contextmanager
def zero_adapters_skipped(model: torch.nn.Module) -> Iterator[None]:
    """Leaves out adapters if all their B matrices are zero, as at the start of a training: no result changes.

    Only without gradients, and on a CPU: a CUDA graph that is captured here would leave them out forever.
    """
    global _zero
    ups = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    _zero = bool(ups) and ups[0].device.type == "cpu" and not any(bool(up.any()) for up in ups)
    try:
        yield
    finally:
        _zero = False


class LinearGroup:
    """Linear layers with the same input, adapted or not, in one matrix [outputs of all + ranks of all, inputs]: every
    W, then every A.

    y = x W^T + b + scale (x A^T) B^T for each layer.
    Shapes: x [tokens, inputs], W [outputs, inputs], A [rank, inputs], B [outputs, rank].
    The frozen weights, and A if its precision is the base's, become views of the matrix, so nothing is stored twice.
    With a quantized base the matrix is built for each pass instead.
    """

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        bases = [layer.get_base_layer() if isinstance(layer, LoraLayer) else layer for layer in layers]
        adapted = [index for index, layer in enumerate(layers) if isinstance(layer, LoraLayer)]
        self.adapted = adapted
        self.quantized = [base.weight for base in bases if quantized.is_quantized(base)]
        self.dtype, self.device = quantized.dtype_of(bases[0]), bases[0].weight.device
        self.downs = [layers[index].lora_A["default"].weight for index in adapted]
        self.ups = [layers[index].lora_B["default"].weight for index in adapted]
        self.scales = [layers[index].scaling["default"] for index in adapted]
        self.ranks = [down.shape[0] for down in self.downs]
        self.outputs, self.inputs = [base.out_features for base in bases], bases[0].in_features
        self.width, self.height = sum(self.outputs), sum(self.outputs) + sum(self.ranks)
        # On a GPU the number of operations decides: one for the scales of all layers, and B in the base's precision is
        # kept. Set by `copies_of` if something else refreshes all copies at the start of a pass.
        self.few_operations = gpu_kernels.available(self.device, self.dtype) and len(set(self.scales)) == 1
        self.up_copies = [torch.empty_like(up, dtype=self.dtype) for up in self.ups] if self.few_operations else []
        self.is_refreshed = False
        self.matrix, self.copies = None, []
        if not self.quantized:
            self.matrix = torch.cat(
                [matrix.detach().to(self.dtype) for matrix in [*(base.weight for base in bases), *self.downs]]
            )
            parts = self._parts(self.matrix)
            for part, base in zip(parts, bases, strict=False):
                base.weight.data = part
            # Views follow the optimizer's steps; copies in a narrower precision are refreshed for each pass.
            for part, down in zip(parts[len(bases) :], self.downs, strict=True):
                if down.dtype == part.dtype:
                    down.data = part
                else:
                    self.copies.append((part, down))
        self.bias = None
        if any(base.bias is not None for base in bases):
            self.bias = torch.zeros(self.height, dtype=self.dtype, device=self.device)
            for part, base in zip(self._parts(self.bias), bases, strict=False):
                if base.bias is not None:
                    part.copy_(base.bias.detach())

    def _parts(self, joint: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of the rows of each W, then of each A."""
        return joint.split([*self.outputs, *self.ranks])

    def weights(self) -> torch.Tensor:
        """The matrix with current values."""
        if self.matrix is None:
            joint = torch.empty(self.height, self.inputs, dtype=self.dtype, device=self.device)
            parts = self._parts(joint)
            for part, weight in zip(parts, self.quantized, strict=False):
                part.copy_(quantized.dequantize(weight))
            for part, down in zip(parts[len(self.quantized) :], self.downs, strict=True):
                part.copy_(down.detach())
            return joint
        if not self.is_refreshed:
            for part, down in self.copies:
                part.copy_(down.detach())
        return self.matrix

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [*self.downs, *self.ups]

    def outputs_of(self, joint: torch.Tensor) -> list[torch.Tensor]:
        """The columns of each layer, as views."""
        return list(joint[:, : self.width].split(self.outputs, dim=1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns `joint`, whose first columns are the outputs, and what `backward` needs: x A^T of all layers, then
        each B.
        """
        if _zero and self.matrix is not None:
            bias = None if self.bias is None else self.bias[: self.width]
            return torch.nn.functional.linear(x, self.matrix[: self.width], bias), []
        joint = torch.nn.functional.linear(x, self.weights(), self.bias)
        if not self.adapted:
            return joint, []
        if self.few_operations:
            return joint, self._add_adapters(joint)
        low = joint[:, self.width :].contiguous()
        ups = [up.detach().to(x.dtype) for up in self.ups]
        outputs, has_kernels = self.outputs_of(joint), kernels.available(x.device, x.dtype)
        for index, part, up, scale in zip(self.adapted, low.split(self.ranks, dim=1), ups, self.scales, strict=True):
            if has_kernels:
                kernels.add_product(outputs[index], part, up, scale)
            else:
                outputs[index].addmm_(part, up.T, alpha=scale)
        return joint, [low, *ups]

    def _add_adapters(self, joint: torch.Tensor) -> list[torch.Tensor]:
        """Adds to the outputs, and returns what `backward` needs: scale x A^T."""
        if not self.is_refreshed:
            torch._foreach_copy_(self.up_copies, [up.detach() for up in self.ups])
        low, outputs = joint[:, self.width :] * self.scales[0], self.outputs_of(joint)
        for index, part, up in zip(self.adapted, low.split(self.ranks, dim=1), self.up_copies, strict=True):
            outputs[index].addmm_(part, up.T)
        return [low]

    def gradient(self, tokens: int) -> torch.Tensor:
        """An empty gradient of `joint`. The caller writes the outputs' columns, `backward` the others."""
        return torch.empty(tokens, self.height, dtype=self.dtype, device=self.device)

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, saved: list[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients of `parameters`. Call `input_gradient` afterwards for the gradient of x."""
        if not self.adapted:
            return []
        if self.few_operations:
            return self._gradients_of_adapters(gradient, x, *saved)
        low, *ups = saved
        lows = gradient[:, self.width :]
        outputs = self.outputs_of(gradient)
        up_gradients, has_kernels = [], kernels.available(gradient.device, gradient.dtype)
        for index, saved_low, low_gradient, up, scale in zip(
            self.adapted, low.split(self.ranks, dim=1), lows.split(self.ranks, dim=1), ups, self.scales, strict=True
        ):
            torch.addmm(low_gradient, outputs[index], up, beta=0, alpha=scale, out=low_gradient)
            if has_kernels:
                up_gradients.append(kernels.outer(saved_low, outputs[index], scale, transposed=True))
            else:
                up_gradients.append(torch.mm(outputs[index].T, saved_low).to(self.ups[0].dtype).mul_(scale))
        if has_kernels:
            return [*kernels.outer(lows, x).split(self.ranks), *up_gradients]
        return [*torch.mm(lows.T, x).to(self.downs[0].dtype).split(self.ranks), *up_gradients]

    def _gradients_of_adapters(self, gradient: torch.Tensor, x: torch.Tensor, low: torch.Tensor) -> list[torch.Tensor]:
        lows, outputs = gradient[:, self.width :], self.outputs_of(gradient)
        parts = zip(
            self.adapted, low.split(self.ranks, dim=1), lows.split(self.ranks, dim=1), self.up_copies, strict=True
        )
        up_gradients = []
        for index, saved_low, low_gradient, up in parts:
            torch.addmm(low_gradient, outputs[index], up, beta=0, alpha=self.scales[0], out=low_gradient)
            up_gradients.append(torch.mm(outputs[index].T, saved_low, out_dtype=torch.float32))
        down_gradients = torch.mm(lows.T, x, out_dtype=torch.float32)
        return [*down_gradients.split(self.ranks), *up_gradients]

    def input_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ (self.weights() if self.matrix is None else self.matrix)


def copies_of(groups: list[LinearGroup]) -> Callable[[], None]:
    """Takes over the copies of adapters in the base's precision. Returns what refreshes all of them at once, which must
    run before the first of the groups in each pass.
    """
    pairs = []
    for group in groups:
        if group.few_operations and group.matrix is not None:
            group.is_refreshed = True
            pairs += [*group.copies, *zip(group.up_copies, group.ups, strict=True)]
    if not pairs:
        return lambda: None
    targets, sources = zip(*pairs, strict=True)
    return lambda: torch._foreach_copy_(list(targets), [source.detach() for source in sources])


class Adapted(torch.autograd.Function):
    """All layers of a group for one input [..., inputs], with gradients for the input, A and B."""

    @staticmethod
    def forward(ctx, x, group: LinearGroup, *_parameters):
        flat = x.reshape(-1, x.shape[-1])
        joint, saved = group.forward(flat)
        ctx.save_for_backward(flat, *saved)
        ctx.group, ctx.shape = group, x.shape
        return tuple(y.view(*x.shape[:-1], -1) for y in group.outputs_of(joint))

    @staticmethod
    def backward(ctx, *gradients):
        (flat, *saved), group = ctx.saved_tensors, ctx.group
        joint = group.gradient(len(flat))
        for y, gradient in zip(group.outputs_of(joint), gradients, strict=True):
            y.copy_(gradient.reshape(y.shape))
        parameters = group.backward(joint, flat, saved)
        x_gradient = group.input_gradient(joint).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return x_gradient, None, *parameters


class SharedInput:
    """Shares one computation among a group's modules: the first call computes all outputs, the others pick theirs
    up.
    """

    def __init__(self, layers: list[LoraLayer]) -> None:
        self.group = LinearGroup(layers)
        self.pending: dict[int, torch.Tensor] = {}
        self.input: tuple[torch.Tensor, int] | None = None
        for index, layer in enumerate(layers):
            layer.forward = lambda x, index=index: self.forward(x, index)

    def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
        if index not in self.pending or self.input is None or self.input[0] is not x or self.input[1] != x._version:
            self.input = (x, x._version)
            self.pending = dict(enumerate(Adapted.apply(x, self.group, *self.group.parameters)))
        result = self.pending.pop(index)
        if not self.pending:
            self.input = None
        return result


def install(model: torch.nn.Module) -> int:
    """Replaces the forward pass of every plain LoRA layer; returns how many.

    Layers that compute more than x W^T + scale * x A^T B^T (dropout, variants) keep peft's forward pass.
    """
    replaced = 0
    for parent in model.modules():
        candidates = {
            name: child for name, child in parent.named_children() if isinstance(child, LoraLayer) and is_plain(child)
        }
        groups = [
            [candidates.pop(name) for name in names]
            for names in SAME_INPUT
            if all(name in candidates for name in names)
        ]
        for layers in [*groups, *([layer] for layer in candidates.values())]:
            SharedInput(layers)
            replaced += len(layers)
    return replaced


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module is a frozen linear layer, quantized or not, or one with a plain LoRA adapter."""
    if not isinstance(module, LoraLayer):
        return (type(module) is torch.nn.Linear or quantized.is_quantized(module)) and not module.weight.requires_grad
    return (
        (type(module) is Linear or quantized.is_adapted(module))
        and is_plain(module.get_base_layer())
        and list(module.active_adapters) == ["default"]
        and not module.lora_variant
        and isinstance(module.lora_dropout["default"], torch.nn.Identity)
        and module.lora_B["default"].bias is None
    )
