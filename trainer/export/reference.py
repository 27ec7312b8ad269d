"""The trainer's own answers: the reference for every exported file.

Uses the base with the adapter unmerged, as in training, in float32. Answers are generated with transformers' attention
and its KV cache; log-probabilities come from the trainer's own forward pass.
"""

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from trainer.data.content import text_of
from trainer.data.dataset import Sequence
from trainer.data.ends import end_token_of, end_tokens
from trainer.data.loss_mask import token_ids
from trainer.data.packing import pack
from trainer.data.tokenizer import Tokenizer
from trainer.export import importance
from trainer.export.answer_file import read, write
from trainer.export.answering import followed_by, greedy, rounded
from trainer.export.fp32_compute import compute_in_float32
from trainer.export.reference_cache import cached_answers, has_importance, prompts_of, today
from trainer.export.seeing import eyes_of, load, with_adapter
from trainer.export.spec import Export
from trainer.model import attention, experts
from trainer.model.model import Model, base_of
from trainer.run.evaluate import forward
from trainer.runtime.errors import JobError
from trainer.runtime.protocol import Report


def reference(spec: Export, report: Report) -> dict[str, Any]:
    """Returns the reference answers and makes sure that the importance matrix exists: cached in the model's folder, or
    made and stored there.
    """
    answers, measured = cached_answers(spec), has_importance(spec)
    if answers and measured:
        return answers
    tokenizer, model = load_tokenizer(spec), load_model(spec)
    share = 1.0 if measured else 0.5
    if not answers:
        answers = _answer_prompts(spec, model, tokenizer, lambda done: report(share * done))
    if not measured:
        importance.measure(spec, model, tokenizer, with_answers(answers), lambda done: report(1 - share + share * done))
    report(1.0)
    return answers


def with_answers(reference_answers: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The conversations with the model's own answers, without their pictures."""
    return [
        [
            *({**message, "content": text_of(message["content"])} for message in row["messages"]),
            {"role": "assistant", "content": row["answer"]},
        ]
        for row in reference_answers["rows"]
    ]


def _answer_prompts(spec: Export, model: Model, tokenizer: Tokenizer, report: Report) -> dict[str, Any]:
    prompts = prompts_of(spec)
    base_model = base_of(model)
    ends = end_tokens(
        base_model.generation_config.eos_token_id,
        model.config.get_text_config().eos_token_id,
        tokenizer.eos_token_id,
        end_token_of(tokenizer),
    )
    eyes = eyes_of(model, tokenizer, checkpoint_folder(spec))
    rows: list[dict[str, Any]] = []
    read_prompts: list[list[int] | Sequence] = []
    for number, messages in enumerate(prompts):
        prompt = eyes.prompt(messages) if eyes else token_ids(messages, tokenizer, open_turn=True)
        read_prompts.append(prompt)
        answer, margins = greedy(model, prompt, ends)
        tokens = prompt if isinstance(prompt, list) else prompt.comparable()
        rows.append({"messages": messages, "prompt_tokens": tokens, "answer_tokens": answer, "margins": margins})
        rows[-1]["answer"] = tokenizer.decode(answer, skip_special_tokens=True)
        report((number + 1) / (len(prompts) + 1))
    config, text = base_model.config, base_model.config.get_text_config()
    before = config._attn_implementation, text._attn_implementation
    # The attention of what sees or hears is not causal.
    outer = attention.NAME if text is config else before[0]
    base_model.set_attn_implementation({"": outer, "text_config": attention.NAME})
    for prompt, row in zip(read_prompts, rows, strict=True):
        row["log_probabilities"] = score(model, prompt, row["answer_tokens"])
    # By part: one that hears may have no other than its own.
    base_model.set_attn_implementation({"": before[0], "text_config": before[1]})
    # A template with the date makes another prompt on another day.
    day = today() if "strftime_now" in tokenizer.chat_template else None
    write(Path(spec.reference), rows, day=day, parse_control_tokens=spec.parse_control_tokens)
    answers = read(Path(spec.reference))
    assert answers, "just written, with a row for each prompt"
    return answers


@torch.inference_mode()
def score(model: Model, prompt: list[int] | Sequence, answer: list[int]) -> list[float]:
    """The log-probabilities of the answer's tokens, by the trainer's forward pass."""
    packed = pack([followed_by(prompt, answer)])
    logits = forward(model, packed)
    return rounded(-cross_entropy(logits, packed.next_ids, reduction="none"))


def checkpoint_folder(spec: Export) -> Path:
    """The full checkpoint: the model's own, or the base of its adapter. Raises JobError("base_missing") without one."""
    folder = Path(spec.model.folder if spec.model.kind == "model" else spec.base.path)
    if not (folder / "config.json").exists():
        raise JobError("base_missing", f"The checkpoint of {spec.base.id} is not there any more.")
    return folder


def load_tokenizer(spec: Export) -> Tokenizer:
    """The tokenizer that the job was trained with, from its result's folder. Raises JobError("base_missing") if it has
    no chat template.
    """
    from transformers import AutoTokenizer

    model_folder = Path(spec.model.folder)
    folder = (
        model_folder
        if (model_folder / "tokenizer.json").exists() or (model_folder / "tokenizer_config.json").exists()
        else checkpoint_folder(spec)
    )
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = spec.parse_control_tokens
    if not tokenizer.chat_template:
        raise JobError(
            "base_missing",
            f"The model {spec.model.id} has no chat template, so conversations cannot be rendered for it.",
        )
    return tokenizer


def load_model(spec: Export) -> Model:
    """The model as it was trained, an adapter unmerged, computing in float32."""
    model = load(checkpoint_folder(spec), "auto")
    if spec.model.kind == "adapter":
        with experts.named_as_written():
            model = with_adapter(model, Path(spec.model.folder))
    compute_in_float32(model)
    return model.eval()
