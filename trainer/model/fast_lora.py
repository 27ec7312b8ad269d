"""LoRA adapters fused with their frozen layers: the same mathematics as peft's modules, with far fewer matrix products.

Layers with the same input (q, k and v; gate and up) become one product, and their A matrices are more rows of it.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear, LoraLayer

from trainer.model import gpu_kernels, kernels, quantized
from trainer.model.model import Model, base_of, factors_of, linear_of, replace_forward
from trainer.model.position_mixers import Check
from trainer.model.scans import Pass

# Whether the adapters are zero: set by `zero_adapters_skipped`.
_zero = False
_matrices: dict[tuple[int, int, int, torch.dtype], torch.Tensor] = {}


@contextmanager
def zero_adapters_skipped(model: Model) -> Iterator[None]:
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
    """Linear layers with the same input, adapted or not.

    y = x W^T + b + scale (x A^T) B^T for each layer.
    Shapes: x [tokens, inputs], W [outputs, inputs], A [rank, inputs], B [outputs, rank].

    One matrix [outputs of all + ranks of all, inputs + ranks of all] has every W with its B on the right, and every A
    below:

        W_1  B_1  0
        W_2  0    B_2
        A_1  0    0
        A_2  0    0

    So one product of [x, scale x A^T] with the upper rows adds what an adapter contributes to what its layer does
    before anything is rounded. Rounded first, a bfloat16 result would swallow an addition below half a unit of its
    eight bits: always, so that a small adapter would have no effect in a forward pass (docs/decisions/006).

    The frozen weights become views of the matrix, so nothing is stored twice; A and B are copied into it for each pass.
    With a quantized base the matrix is built for each pass instead.
    """

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        bases = [linear_of(layer) for layer in layers]
        adapters = {index: layer for index, layer in enumerate(layers) if isinstance(layer, LoraLayer)}
        self.adapted = list(adapters)
        self.quantized = [base.weight for base in bases if quantized.is_quantized(base)]
        self.dtype, self.device = quantized.dtype_of(bases[0]), bases[0].weight.device
        factors = [factors_of(layer) for layer in adapters.values()]
        self.downs, self.ups = [down for down, _ in factors], [up for _, up in factors]
        self.scales: list[float] = [layer.scaling["default"] for layer in adapters.values()]
        self.ranks = [down.shape[0] for down in self.downs]
        self.outputs, self.inputs = [base.out_features for base in bases], bases[0].in_features
        self.width, self.height = sum(self.outputs), sum(self.outputs) + sum(self.ranks)
        # On a GPU the number of operations decides: one for the gradients of A of all layers, in float32 at once.
        self.few_operations = gpu_kernels.available(self.device, self.dtype) and len(set(self.scales)) == 1
        # Set by `copies_of` if something else refreshes all copies at the start of a pass.
        self.is_refreshed = False
        self.matrix, self.copies = None, []
        if not self.quantized:
            self.matrix = self._empty_matrix()
            self.matrix[:, self.inputs :] = 0
            weights, downs, ups = self._parts(self.matrix)
            for part, base in zip(weights, bases, strict=True):
                part.copy_(base.weight.detach())
                base.weight.data = part
            self.copies = [*zip(downs, self.downs, strict=True), *zip(ups, self.ups, strict=True)]
        self.bias = None
        if any(base.bias is not None for base in bases):
            self.bias = torch.zeros(self.width, dtype=self.dtype, device=self.device)
            for part, base in zip(self.bias.split(self.outputs), bases, strict=True):
                if base.bias is not None:
                    part.copy_(base.bias.detach())

    def _empty_matrix(self) -> torch.Tensor:
        return torch.empty(self.height, self.inputs + sum(self.ranks), dtype=self.dtype, device=self.device)

    def _shared_matrix(self) -> torch.Tensor:
        """One for all groups of this size: a product uses it up before the next one is built. One for each would leave
        holes between what passes save. Not on a GPU, where a captured graph owns what it allocates.
        """
        key = (self.height, self.inputs, sum(self.ranks), self.dtype)
        if key not in _matrices:
            _matrices[key] = self._empty_matrix()
        return _matrices[key]

    def _parts(self, matrix: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Views of each W, each A and each B."""
        rows = matrix.split([*self.outputs, *self.ranks])
        columns = [part[:, self.inputs :].split(self.ranks, dim=1) for part in rows]
        ups = [columns[index][place] for place, index in enumerate(self.adapted)]
        inputs = [part[:, : self.inputs] for part in rows]
        return inputs[: len(self.outputs)], inputs[len(self.outputs) :], ups

    def weights(self) -> torch.Tensor:
        """The matrix [height, inputs + ranks] with current values."""
        if self.matrix is None:
            matrix = self._shared_matrix() if self.device.type == "cpu" else self._empty_matrix()
            matrix[:, self.inputs :] = 0
            weights, downs, ups = self._parts(matrix)
            for part, weight in zip(weights, self.quantized, strict=True):
                part.copy_(quantized.dequantize(weight))
            for part, parameter in zip([*downs, *ups], self.parameters, strict=True):
                part.copy_(parameter.detach())
            return matrix
        if not self.is_refreshed:
            for part, parameter in self.copies:
                part.copy_(parameter.detach())
        return self.matrix

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """A of each adapted layer, then B of each."""
        return [*self.downs, *self.ups]

    def outputs_of(self, joint: torch.Tensor) -> list[torch.Tensor]:
        """The columns of each layer in [tokens, width or more], as views [tokens, outputs]."""
        return list(joint[:, : self.width].split(self.outputs, dim=1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns the outputs of all layers [tokens, width], and what `backward` needs: nothing without an adapter,
        else one tensor [tokens, inputs + ranks] of x and scale x A^T.
        """
        if not self.adapted:
            return torch.nn.functional.linear(x, self.weights(), self.bias), []
        if _zero and self.matrix is not None:
            return torch.nn.functional.linear(x, self.matrix[: self.width, : self.inputs], self.bias), []
        matrix = self.weights()
        extended = x.new_empty(len(x), self.inputs + sum(self.ranks))
        extended[:, : self.inputs] = x
        low = extended[:, self.inputs :]
        torch.mm(x, matrix[self.width :, : self.inputs].T, out=low)
        for part, scale in self._scaled(low):
            part.mul_(scale)
        return torch.nn.functional.linear(extended, matrix[: self.width], self.bias), [extended]

    def _scaled(self, low: torch.Tensor) -> list[tuple[torch.Tensor, float]]:
        """The columns of adapters with their scales; all columns at once where adapters have one scale."""
        if len(set(self.scales)) == 1:
            return [(low, self.scales[0])]
        return list(zip(low.split(self.ranks, dim=1), self.scales, strict=True))

    def gradient(self, tokens: int) -> torch.Tensor:
        """An empty gradient [tokens, height]: the caller writes the outputs' columns, `backward` the others, which are
        x A^T's.
        """
        return torch.empty(tokens, self.height, dtype=self.dtype, device=self.device)

    def backward(self, gradient: torch.Tensor, saved: list[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients of `parameters`, from that of the outputs [tokens, height] and what `forward` returned. Call
        `input_gradient` afterwards for the gradient of x.
        """
        if not self.adapted:
            return []
        (extended,) = saved
        x, low = extended[:, : self.inputs], extended[:, self.inputs :]
        lows, outputs = gradient[:, self.width :], self.outputs_of(gradient)
        parts = zip(
            *(self.adapted, low.split(self.ranks, dim=1), lows.split(self.ranks, dim=1), self._ups(), self.scales),
            strict=True,
        )
        up_gradients = []
        for index, low_part, low_gradient, up, scale in parts:
            torch.addmm(low_gradient, outputs[index], up, beta=0, alpha=scale, out=low_gradient)
            up_gradients.append(self._transposed_product(outputs[index], low_part, up=True))
        return [*self._transposed_product(lows, x).split(self.ranks), *up_gradients]

    def _ups(self) -> list[torch.Tensor]:
        """Each B in the base's precision."""
        return [up.detach().to(self.dtype) for up in self.ups] if self.matrix is None else self._parts(self.matrix)[2]

    def _transposed_product(self, left: torch.Tensor, right: torch.Tensor, up: bool = False) -> torch.Tensor:
        """left^T right in float32: the gradients of A, or of one B."""
        if self.few_operations:
            return torch.mm(left.T, right, out_dtype=torch.float32)
        if kernels.available(left.device, left.dtype):
            # The kernel wants the narrow side on the left.
            return kernels.outer(right, left, transposed=True) if up else kernels.outer(left, right)
        return torch.mm(left.T, right).to(self.downs[0].dtype)

    def input_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of x [tokens, inputs] from a gradient [tokens, height] that `backward` has completed."""
        return gradient @ (self.weights() if self.matrix is None else self.matrix)[:, : self.inputs]


def copies_of(groups: list[LinearGroup]) -> Callable[[], None]:
    """Takes over the copies of adapters in the base's precision. Returns what refreshes all of them at once, which must
    run before the first of the groups in each pass.
    """
    pairs = []
    for group in groups:
        if group.few_operations and group.matrix is not None:
            group.is_refreshed = True
            pairs += group.copies
    if not pairs:
        return lambda: None
    targets, sources = zip(*pairs, strict=True)
    return lambda: torch._foreach_copy_(list(targets), [source.detach() for source in sources])


def own(y: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """y [tokens, outputs] as [..., outputs] of an input's shape [..., inputs], and for autograd no view: Llama 4's
    mixtures add to such a result in place.
    """
    return torch.ops.aten._unsafe_view(y, [*shape[:-1], y.shape[-1]])


class Adapted(torch.autograd.Function):
    """All layers of a group for one input [..., inputs], with gradients for the input, A and B."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: LinearGroup, *_parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1])
        joint, saved = group.forward(flat)
        ctx.save_for_backward(*saved)
        ctx.group, ctx.shape = group, x.shape
        return tuple(own(y, x.shape) for y in group.outputs_of(joint))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        group = ctx.group
        joint = group.gradient(math.prod(ctx.shape[:-1]))
        for y, gradient in zip(group.outputs_of(joint), gradients, strict=True):
            y.copy_(gradient.reshape(y.shape))
        parameters = group.backward(joint, list(ctx.saved_tensors))
        x_gradient = group.input_gradient(joint).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return x_gradient, None, *parameters


class SharedInput:
    """Shares one computation among a group's modules: the first call computes all outputs, the others pick theirs
    up.
    """

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        self.group = LinearGroup(layers)
        self.pending: dict[int, torch.Tensor] = {}
        self.input: tuple[torch.Tensor, int] | None = None
        for index, layer in enumerate(layers):
            replace_forward(layer, lambda x, index=index: self.forward(x, index))

    def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """The output [..., outputs] of the module with that number in the group, for x [..., inputs]."""
        if index not in self.pending or self.input is None or self.input[0] is not x or self.input[1] != x._version:
            self.input = (x, x._version)
            self.pending = dict(enumerate(Adapted.apply(x, self.group, *self.group.parameters)))
        result = self.pending.pop(index)
        if not self.pending:
            self.input = None
        return result


def install(model: Model, done: Collection[torch.nn.Module] = ()) -> int:
    """Replaces the forward pass of every plain LoRA layer but those that are `done`; returns how many.

    Layers that compute more than x W^T + scale * x A^T B^T (dropout, variants) keep peft's forward pass.
    """
    replaced, sharing = 0, _sharing(model)
    for parent in model.modules():
        candidates = {name: child for name, child in adapted_children(parent).items() if child not in done}
        groups = [
            [candidates.pop(name) for name in names]
            for names in sharing.get(type(parent), ())
            if all(name in candidates for name in names)
        ]
        for layers in [*groups, *([layer] for layer in candidates.values())]:
            SharedInput(layers)
            replaced += len(layers)
    return replaced


def adapted_children(parent: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """A module's own plain LoRA layers, by their names."""
    return {name: child for name, child in parent.named_children() if isinstance(child, LoraLayer) and is_plain(child)}


def _sharing(model: Model) -> dict[type[torch.nn.Module], list[tuple[str, ...]]]:
    """Names of layers below a class of modules that get the same input, as a pass through the first layers shows."""
    check = Check(base_of(model), Pass())
    found: dict[torch.nn.Module, list[tuple[torch.Tensor, list[str]]]] = {}
    hooks = []
    for parent in (part for layer in check.kinds for part in layer.modules()):
        for name, child in adapted_children(parent).items():

            def record(_: object, args: tuple[Any, ...], parent: torch.nn.Module = parent, name: str = name) -> None:
                inputs = found.setdefault(parent, [])
                for x, names in inputs:
                    if args and x is args[0]:
                        names.append(name)
                        return
                inputs.append((args[0], [name]))

            hooks.append(child.register_forward_pre_hook(record))
    try:
        check.run(check.documents)
    except Exception:
        # An unknown family may fail in any way without what its own forward pass gives it.
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return {
        type(parent): [tuple(names) for _, names in inputs if len(names) > 1 and len(set(names)) == len(names)]
        for parent, inputs in found.items()
    }


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
        and cast(torch.nn.Linear, module.lora_B["default"]).bias is None
    )
