"""The head's loss, a few learned tokens at a time: the results for the whole vocabulary are never held for all of them
at once.

The gradient is made in the forward pass, while a piece's results are still in the cache (as in Wijmans et al., "Cut
Your Losses in
Large-Vocabulary Language Models", 2024, arXiv 2411.09009, without their kernels).
"""

import torch

# Learned tokens a piece: 128 of them in a vocabulary of 49,152 are 25 MB in float32, which a CPU's cache nearly holds.
# A GPU is filled by many more.
PIECES = {"cpu": 128, "cuda": 1024}


class HeadLoss(torch.autograd.Function):
    """Cross entropy of each learned token [targets] from hidden [targets, width] by a frozen head [vocabulary,
    width].
    """

    @staticmethod
    def forward(ctx, hidden, weight, next_ids):
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        size = PIECES[hidden.device.type]
        for start in range(0, len(hidden), size):
            piece = slice(start, start + size)
            logits = (hidden[piece] @ weight.T).float()
            targets = next_ids[piece, None]
            whole = logits.logsumexp(dim=-1, keepdim=True)
            losses[piece] = (whole - logits.gather(1, targets))[:, 0]
            if gradient is not None:
                share = logits.sub_(whole).exp_()
                share.scatter_(1, targets, share.gather(1, targets) - 1)
                torch.mm(share.to(weight.dtype), weight, out=gradient[piece])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx, of_losses):
        (gradient,) = ctx.saved_tensors
        return of_losses[:, None].to(gradient.dtype) * gradient, None, None
