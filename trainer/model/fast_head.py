"""The head's loss in chunks of learned tokens: logits of all tokens over the vocabulary never exist at once.

The gradient is made in the forward pass, while a chunk's logits are still in the cache (as in Wijmans et al., "Cut Your
Losses in Large-Vocabulary Language Models", 2024, arXiv 2411.09009, without their kernels).
"""

from typing import Any

import torch

from trainer.model.fused_layers import kernels_for

# Learned tokens in a chunk: with a vocabulary of 49,152, 128 tokens are 25 MB in float32, which nearly fits into a
# CPU's cache. A GPU needs many more to be busy.
CHUNK_TOKENS = {"cpu": 128, "cuda": 1024}
# With the trainer's kernels logits exist in bfloat16 alone, and fewer chunks read the head's weights less often.
KERNEL_CHUNK_TOKENS = {"cpu": 512, "cuda": 2048}


class HeadLoss(torch.autograd.Function):
    """Cross entropy of each learned token [targets], from hidden states [targets, width] and a frozen head [vocabulary,
    width].
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        own = kernels_for(hidden.device, hidden.dtype)
        size = (KERNEL_CHUNK_TOKENS if own else CHUNK_TOKENS)[hidden.device.type]
        for start in range(0, len(hidden), size):
            chunk = slice(start, start + size)
            logits = hidden[chunk] @ weight.T
            if own:
                own.cross_entropy(logits, next_ids[chunk], losses[chunk], gradient is not None)
                if gradient is not None:
                    torch.mm(logits, weight, out=gradient[chunk])
                continue
            logits, targets = logits.float(), next_ids[chunk, None]
            log_sum = logits.logsumexp(dim=-1, keepdim=True)
            losses[chunk] = (log_sum - logits.gather(1, targets))[:, 0]
            if gradient is not None:
                probabilities = logits.sub_(log_sum).exp_()
                probabilities.scatter_(1, targets, probabilities.gather(1, targets) - 1)
                torch.mm(probabilities.to(weight.dtype), weight, out=gradient[chunk])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, loss_gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return loss_gradient[:, None].to(gradient.dtype) * gradient, None, None
