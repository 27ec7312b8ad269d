"""Evaluates the model: its loss on rows that it does not learn, and its answers to fixed prompts."""

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from trainer.data.dataset import Prepared
from trainer.data.ends import end_token_of, end_tokens
from trainer.data.layout import layout_of
from trainer.data.loss_mask import token_ids
from trainer.data.packing import Limits, Pack, pack, split
from trainer.data.tokenizer import Tokenizer
from trainer.model.fast_head import HeadLoss
from trainer.model.model import Model
from trainer.model.position_mixers import keeps_apart
from trainer.model.served import as_served, drafting
from trainer.model.vision import inputs_of
from trainer.runtime.distributed import Distributed


def forward(model: Model, packed: Pack) -> torch.Tensor:
    """Logits [targets, vocabulary] in float32 at the positions of a pack whose next token is learned."""
    logits = model(
        **inputs_of(model, packed),
        position_ids=packed.positions,
        layout=packed.layout,
        # The head is the widest matrix; it is applied only at learned positions.
        logits_to_keep=packed.chosen,
        use_cache=False,
    ).logits[0]
    return logits.float()


def losses(model: Model, packed: Pack) -> torch.Tensor:
    """The cross entropy of each learned token of a pack, float32 [targets]."""
    if not hasattr(model, "body_and_head"):
        return cross_entropy(forward(model, packed), packed.next_ids, reduction="none")
    body, weight = model.body_and_head
    hidden = body(
        **inputs_of(model, packed), position_ids=packed.positions, layout=packed.layout, use_cache=False
    ).last_hidden_state[0]
    chosen, scale = hidden.index_select(0, packed.chosen), getattr(model, "head_scale", 1.0)
    return HeadLoss.apply(chosen if scale == 1 else chosen * scale, weight, packed.next_ids)


def limits_of_scoring(limits: Limits) -> Limits:
    """Limits of a pass in which the logits of all learned tokens exist at once."""
    return replace(limits, targets=min(limits.targets, Limits.targets))


@torch.no_grad()
def score(model: Model, data: Prepared, limits: Limits, device: torch.device) -> tuple[float, float, float]:
    """The mean loss of a learned token, the share of sequences in which every learned token is the model's top choice,
    and the share of learned tokens that are.
    """
    was_training = model.training
    model.eval()
    sequences = [sequence for row in data.rows for sequence in row.sequences]
    loss, exact, correct = 0.0, 0, 0
    for group in split(sequences, limits_of_scoring(limits)):
        packed = pack(group, device)
        logits, next_ids = forward(model, packed), packed.next_ids
        loss += float(cross_entropy(logits, next_ids, reduction="sum"))
        hits = logits.argmax(-1) == next_ids
        correct += int(hits.sum())
        exact += sum(bool(hit.all()) for hit in hits.split([sequence.targets for sequence in group]))
    model.train(was_training)
    targets = sum(sequence.targets for sequence in sequences)
    return loss / targets, exact / len(sequences), correct / targets


@torch.no_grad()
def generate_answers(
    model: Model,
    tokenizer: Tokenizer,
    prompts: list[list[dict[str, Any]]],
    max_tokens: int,
    max_length: int,
    device: torch.device,
    settings: dict[str, Any] | None = None,
    distributed: Distributed | None = None,
) -> list[str]:
    """Greedy answers of the model as it will be served, to all prompts together, rendered with the variables `settings`
    of the chat template. Uses no KV cache: answers are short and few. Processes that share the weights go on with the
    tokens of the first.

    Where training computes with less and faster, its model drafts whole answers, and one pass of the served model finds
    the first token of each that it would not have chosen, which it replaces. Then the rest is drafted again.
    """
    together = distributed or Distributed.alone()
    was_training = model.training
    model.eval()
    read = [token_ids(messages, tokenizer, open_turn=True, settings=settings) for messages in prompts]
    sequences = [ids[-max_length + max_tokens :] for ids in read]
    starts = [len(ids) for ids in sequences]
    confirmed = list(starts)
    configured = model.config.get_text_config().eos_token_id
    ends = set(end_tokens(configured, tokenizer.eos_token_id, end_token_of(tokenizer)))

    def unfinished() -> list[int]:
        return [
            index
            for index, ids in enumerate(sequences)
            if confirmed[index] - starts[index] < max_tokens
            and not (confirmed[index] > starts[index] and ids[confirmed[index] - 1] in ends)
        ]

    while active := unfinished():
        with drafting(model):
            longest = [starts[index] + max_tokens for index in active]
            _extend(model, sequences, active, longest, ends, device, together)
        with as_served(model):
            found = _likeliest(model, sequences, active, [confirmed[index] for index in active], device)
            likeliest = together.same(found)
        for index, tokens in zip(active, likeliest, strict=True):
            drafted = sequences[index][confirmed[index] :]
            agreed = next((at for at, pair in enumerate(zip(drafted, tokens, strict=True)) if pair[0] != pair[1]), None)
            if agreed is not None:
                sequences[index] = [*sequences[index][: confirmed[index] + agreed], tokens[agreed]]
            confirmed[index] = len(sequences[index])
    model.train(was_training)
    return [
        tokenizer.decode(ids[start:], skip_special_tokens=True) for ids, start in zip(sequences, starts, strict=True)
    ]


def _extend(
    model: Model,
    sequences: list[list[int]],
    active: list[int],
    longest: list[int],
    ends: set[int],
    device: torch.device,
    together: Distributed,
) -> None:
    """Appends likeliest tokens to the sequences, to an end token or their longest length."""
    bounds = dict(zip(active, longest, strict=True))
    while active:
        tokens = together.same(
            _likeliest(model, sequences, active, [len(sequences[index]) for index in active], device)
        )
        for index, (token,) in zip(active, tokens, strict=True):
            sequences[index].append(token)
        active = [
            index for index in active if sequences[index][-1] not in ends and len(sequences[index]) < bounds[index]
        ]


def _likeliest(
    model: Model, sequences: list[list[int]], active: list[int], starts: list[int], device: torch.device
) -> list[list[int]]:
    """For each active sequence, the likeliest token in each place from its start to its end; in the next place if the
    sequence ends before its start.
    """
    if len(active) > 1 and not keeps_apart(model):
        pairs = zip(active, starts, strict=True)
        return [_likeliest(model, sequences, [index], [start], device)[0] for index, start in pairs]
    rows, ids, positions, chosen, offset = [sequences[index] for index in active], [], [], [], 0
    counts = []
    for row, start in zip(rows, starts, strict=True):
        end = max(start + 1, len(row))
        # A position's logits are of the next place.
        chosen += range(offset + start - 1, offset + end - 1)
        counts.append(end - start)
        ids += row
        positions += range(len(row))
        offset += len(row)
    logits = model(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        layout=layout_of([0], [len(row) for row in rows], device),
        logits_to_keep=torch.tensor(chosen, device=device),
        use_cache=False,
    ).logits[0]
    return [part.tolist() for part in logits.argmax(-1).split(counts)]
