"""How good the model is on rows that it does not learn, and what it answers to fixed prompts."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from trainer.data.dataset import Prepared
from trainer.data.loss_mask import token_ids
from trainer.data.packing import Limits, Pack, pack, split
from trainer.model.attention import layout_of
from trainer.model.fast_head import HeadLoss


def forward(model, packed: Pack) -> torch.Tensor:
    """Logits [targets, vocabulary] in float32 at the positions of a pack whose next token is learned."""
    logits = model(
        input_ids=packed.ids,
        position_ids=packed.positions,
        layout=packed.layout,
        # The head is the widest matrix; it is applied where something is learned and nowhere else.
        logits_to_keep=packed.chosen,
        use_cache=False,
    ).logits[0]
    return logits.float()


def losses(model, packed: Pack) -> torch.Tensor:
    """The cross entropy of each learned token of a pack, float32 [targets]."""
    if not hasattr(model, "body_and_head"):
        return cross_entropy(forward(model, packed), packed.next_ids, reduction="none")
    body, weight = model.body_and_head
    hidden = body(
        input_ids=packed.ids, position_ids=packed.positions, layout=packed.layout, use_cache=False
    ).last_hidden_state[0]
    return HeadLoss.apply(hidden.index_select(0, packed.chosen), weight, packed.next_ids)


@torch.no_grad()
def score(model, data: Prepared, limits: Limits, device: torch.device) -> tuple[float, float]:
    """The mean loss of a learned token, and the share of sequences whose every learned token is the model's first
    choice.
    """
    was_training = model.training
    model.eval()
    sequences = [sequence for row in data.rows for sequence in row.sequences]
    loss, right = 0.0, 0
    # Here the head's results are held for all learned tokens of a pass.
    for group in split(sequences, replace(limits, targets=min(limits.targets, Limits.targets))):
        packed = pack(group, device)
        logits, next_ids = forward(model, packed), packed.next_ids
        loss += float(cross_entropy(logits, next_ids, reduction="sum"))
        hits = (logits.argmax(-1) == next_ids).split([sequence.targets for sequence in group])
        right += sum(bool(hit.all()) for hit in hits)
    model.train(was_training)
    return loss / sum(sequence.targets for sequence in sequences), right / len(sequences)


@torch.no_grad()
def answers(
    model, tokenizer, prompts: list[list[dict]], max_tokens: int, max_length: int, device: torch.device
) -> list[str]:
    """The likeliest answers, a token at a time for all prompts together. No cache of keys and values: answers are short
    and few.
    """
    was_training = model.training
    model.eval()
    running = [token_ids(messages, tokenizer, open_turn=True)[-max_length + max_tokens :] for messages in prompts]
    begun = [len(ids) for ids in running]
    ends = _end_tokens(model, tokenizer)
    going = list(range(len(prompts)))
    for _ in range(max_tokens):
        if not going:
            break
        lengths = [len(running[index]) for index in going]
        last = torch.tensor(lengths).cumsum(0) - 1
        logits = model(
            input_ids=torch.tensor([[token for index in going for token in running[index]]], device=device),
            position_ids=torch.cat([torch.arange(length) for length in lengths])[None].to(device),
            layout=layout_of(0, lengths, device),
            logits_to_keep=last.to(device),
            use_cache=False,
        ).logits[0]
        for index, token in zip(going, logits.argmax(-1).tolist(), strict=True):
            running[index].append(token)
        going = [index for index in going if running[index][-1] not in ends]
    model.train(was_training)
    return [tokenizer.decode(ids[start:], skip_special_tokens=True) for ids, start in zip(running, begun, strict=True)]


def _end_tokens(model, tokenizer) -> set[int]:
    configured = model.config.eos_token_id
    ends = set(configured if isinstance(configured, list) else [configured])
    return ends | {tokenizer.eos_token_id} - {None}
