"""The adapter's share of each linear layer, added in place: same mathematics as peft's modules, about half the passes over memory."""

import torch
from peft.tuners.lora.layer import Linear


class AdaptedLinear(torch.autograd.Function):
    """y = x W^T + b + scale * (x A^T) B^T with gradients for x, A and B alone; W and b are frozen.

    Shapes: x [..., inputs], W [outputs, inputs], b [outputs] or None, A [rank, inputs], B [outputs, rank].
    """

    @staticmethod
    def forward(ctx, x, weight, bias, down, up, scale):
        flat = x.reshape(-1, x.shape[-1])
        low = flat @ down.T
        y = torch.nn.functional.linear(flat, weight, bias).addmm_(low, up.T, alpha=scale)
        ctx.save_for_backward(flat, low, weight, down, up)
        ctx.scale, ctx.shape = scale, x.shape
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        flat, low, weight, down, up = ctx.saved_tensors
        gradient = gradient.reshape(-1, gradient.shape[-1])
        low_gradient = (gradient @ up).mul_(ctx.scale)
        down_gradient = low_gradient.T @ flat
        up_gradient = (gradient.T @ low).mul_(ctx.scale)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = (gradient @ weight).addmm_(low_gradient, down).view(ctx.shape)
        return x_gradient, None, None, down_gradient, up_gradient, None


def install(model: torch.nn.Module) -> int:
    """Replaces the forward pass of every plain LoRA layer; returns how many.

    Layers that are more than x W^T + scale * x A^T B^T in one precision (dropout, variants, quantized bases) keep peft's own.
    """
    replaced = 0
    for module in model.modules():
        if type(module) is Linear and _plain(module):
            module.forward = _forward_of(module)
            replaced += 1
    return replaced


def _plain(module: Linear) -> bool:
    base = module.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and list(module.active_adapters) == ["default"]
        and not module.lora_variant
        and isinstance(module.lora_dropout["default"], torch.nn.Identity)
        and not base.weight.requires_grad
        and base.weight.dtype == module.lora_A["default"].weight.dtype
        and module.lora_B["default"].bias is None
    )


def _forward_of(module: Linear):
    base, down, up, scale = module.get_base_layer(), module.lora_A["default"], module.lora_B["default"], module.scaling["default"]

    def forward(x: torch.Tensor) -> torch.Tensor:
        return AdaptedLinear.apply(x, base.weight, base.bias, down.weight, up.weight, scale)

    return forward
