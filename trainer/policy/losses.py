"""Losses of single tokens for policy gradients, and how they are weighed, by the names of the field.

All take natural log-probabilities of sampled tokens. `new`: under the weights that are trained, with their gradient.
`old`: under the weights before this batch of updates. `advantage`: how much better than expected the answer was.
"""

from dataclasses import dataclass

import torch

# The name in requests of a sum of log-probabilities: supervised training.
CROSS_ENTROPY = "cross_entropy"


@dataclass(frozen=True)
class TokenLosses:
    """`values`: float32 [tokens], with gradients. `clipped`: bool [tokens], whether clipping took the gradient away."""

    values: torch.Tensor
    clipped: torch.Tensor


def cross_entropy(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """Minus the log-probability; the advantages are not used."""
    return _unclipped(-new)


def importance_sampling(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """REINFORCE with the ratio of the probabilities as importance weight (Williams, 1992); without clipping."""
    return _unclipped(-(new - old).exp() * advantage)


def ppo(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """The clipped surrogate (Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv 1707.06347) with
    a bound of its own on each side, 1 - low and 1 + high ("clip-higher" of DAPO, Yu et al., 2025, arXiv 2503.14476).
    """
    return _clipped((new - old).exp(), advantage, low, high)


def cispo(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """Clips the importance weight and never the gradient (MiniMax-M1, 2025, arXiv 2506.13585)."""
    ratio = (new - old).exp().detach()
    bounded = ratio.clamp(1 - low, 1 + high)
    return TokenLosses(-bounded * advantage * new, ratio != bounded)


def gspo(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """The clipped surrogate of whole answers: the ratio is that of their mean log-probabilities (Zheng et al., "Group
    Sequence Policy Optimization", 2025, arXiv 2507.18071). `lengths`: tokens of each answer.
    """
    means = [part.mean().expand(len(part)) for part in (new - old).split(lengths)]
    return _clipped(torch.cat(means).exp(), advantage, low, high)


def reinforce(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, lengths: list[int]
) -> TokenLosses:
    """The plain policy gradient (Williams, 1992), as RLOO takes it (Ahmadian et al., "Back to Basics", 2024,
    arXiv 2402.14740).
    """
    return _unclipped(-advantage * new)


LOSSES = {
    CROSS_ENTROPY: cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "reinforce": reinforce,
}


def _unclipped(values: torch.Tensor) -> TokenLosses:
    return TokenLosses(values, torch.zeros_like(values, dtype=torch.bool))


def _clipped(ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> TokenLosses:
    free, bounded = -ratio * advantage, -ratio.clamp(1 - low, 1 + high) * advantage
    # The larger loss counts; where that is the bounded one, its gradient is zero.
    return TokenLosses(torch.maximum(free, bounded), (bounded > free).detach())


def truncated_weights(old: torch.Tensor, sampled: torch.Tensor, most: float) -> torch.Tensor:
    """Importance weights, at most `most`, of tokens that another program sampled with slightly other probabilities
    (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025): [tokens].
    """
    return (old - sampled).exp().clamp(max=most).detach()
