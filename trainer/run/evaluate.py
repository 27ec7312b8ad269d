"""Evaluates the model: its loss on rows that it does not learn, and its answers to fixed prompts."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from trainer.data.dataset import Prepared
from trainer.data.layout import layout_of
from trainer.data.loss_mask import token_ids
from trainer.data.packing import Limits, Pack, pack, split
from trainer.model.fast_head import HeadLoss
from trainer.model.vision import inputs_of


def forward(model, packed: Pack) -> torch.Tensor:
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


def losses(model, packed: Pack) -> torch.Tensor:
    """The cross entropy of each learned token of a pack, float32 [targets]."""
    if not hasattr(model, "body_and_head"):
        return cross_entropy(forward(model, packed), packed.next_ids, reduction="none")
    body, weight = model.body_and_head
    hidden = body(
        **inputs_of(model, packed), position_ids=packed.positions, layout=packed.layout, use_cache=False
    ).last_hidden_state[0]
    return HeadLoss.apply(hidden.index_select(0, packed.chosen), weight, packed.next_ids)


@torch.no_grad()
def score(model, data: Prepared, limits: Limits, device: torch.device) -> tuple[float, float, float]:
    """The mean loss of a learned token, the share of sequences in which every learned token is the model's top choice,
    and the share of learned tokens that are.
    """
    was_training = model.training
    model.eval()
    sequences = [sequence for row in data.rows for sequence in row.sequences]
    loss, exact, correct = 0.0, 0, 0
    # Here the logits of all learned tokens of a pass exist at once.
    for group in split(sequences, replace(limits, targets=min(limits.targets, Limits.targets))):
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
    model, tokenizer, prompts: list[list[dict]], max_tokens: int, max_length: int, device: torch.device
) -> list[str]:
    """Greedy answers, one token at a time for all prompts together. Uses no KV cache: answers are short and few."""
    was_training = model.training
    model.eval()
    sequences = [token_ids(messages, tokenizer, open_turn=True)[-max_length + max_tokens :] for messages in prompts]
    prompt_lengths = [len(ids) for ids in sequences]
    ends = _end_tokens(model, tokenizer)
    active = list(range(len(prompts)))
    for _ in range(max_tokens):
        if not active:
            break
        lengths = [len(sequences[index]) for index in active]
        last = torch.tensor(lengths).cumsum(0) - 1
        logits = model(
            input_ids=torch.tensor([[token for index in active for token in sequences[index]]], device=device),
            position_ids=torch.cat([torch.arange(length) for length in lengths])[None].to(device),
            layout=layout_of([0], lengths, device),
            logits_to_keep=last.to(device),
            use_cache=False,
        ).logits[0]
        for index, token in zip(active, logits.argmax(-1).tolist(), strict=True):
            sequences[index].append(token)
        active = [index for index in active if sequences[index][-1] not in ends]
    model.train(was_training)
    return [
        tokenizer.decode(ids[start:], skip_special_tokens=True)
        for ids, start in zip(sequences, prompt_lengths, strict=True)
    ]


def _end_tokens(model, tokenizer) -> set[int]:
    configured = model.config.eos_token_id
    ends = set(configured if isinstance(configured, list) else [configured])
    return ends | {tokenizer.eos_token_id} - {None}
