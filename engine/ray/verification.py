"""What the replicas of both engines verify: the token of a request, and the model against its training."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping

WRONG_TOKEN = "This is not the token of this deployment."
# Takes a model's name and rows; gives each row's log-probabilities of its targets: {logprobs}.
Score = Callable[[str, list[dict]], Awaitable[list[dict]]]


def has_token(headers: Mapping[str, str], token_sha256: str) -> bool:
    """Whether a request brings the token with this hash."""
    token = headers.get("authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(hashlib.sha256(token.encode()).hexdigest(), token_sha256)


async def require_trained_answers(
    engine: str,
    *,
    tuned: str,
    origin: str,
    score: Score,
    get: Callable[[str], Awaitable[dict]],
    post: Callable[[str, dict], Awaitable[dict]],
) -> None:
    """What the engine makes of the rows of the training must be what the trainer made of them.

    `tuned` and `origin` are names of the trained model and of that without its training. `get` and `post` ask the
    service, which has the rows and judges the scores. Raises RuntimeError with its reason, which names `engine`.
    """
    rows = (await get("probe"))["rows"]
    if not rows:
        return
    scores = {"tuned": await score(tuned, rows), "origin": await score(origin, rows)}
    problem = (await post("scores", scores))["problem"]
    if problem:
        raise RuntimeError(f"{engine} does not answer as the model does. {problem}")
