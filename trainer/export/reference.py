"""The trainer's own answers, which those of every exported file are compared with.

The base with the adapter beside it, as in training and not merged, in float32. Answers are generated with transformers'
attention, which
has a cache; how likely their tokens are is computed by the trainer's own forward pass.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainer.data.dataset import Sequence
from trainer.data.loss_mask import token_ids
from trainer.data.packing import pack
from trainer.export import importance
from trainer.export.answer_file import read, write
from trainer.export.answering import greedy, rounded
from trainer.export.folder import end_of_turn, end_tokens
from trainer.export.fp32_compute import compute_in_float32
from trainer.export.reference_cache import is_measured, kept_answers, prompts_of, today
from trainer.export.spec import Export
from trainer.model import attention
from trainer.run.evaluate import forward
from trainer.runtime.errors import JobError


def reference(spec: Export, tell) -> dict:
    """The answers and the measurements, from the model's folder where they are there already, else made and left
    there.
    """
    answers, measured = kept_answers(spec), is_measured(spec)
    if answers and measured:
        return answers
    tokenizer, model = load_tokenizer(spec), load_model(spec)
    share = 1.0 if measured else 0.5
    if not answers:
        answers = _answer(spec, model, tokenizer, lambda done: tell(share * done))
    if not measured:
        importance.measure(spec, model, tokenizer, answered(answers), lambda done: tell(1 - share + share * done))
    tell(1.0)
    return answers


def answered(told: dict) -> list[list[dict]]:
    """The conversations with the model's own answers."""
    return [[*row["messages"], {"role": "assistant", "content": row["answer"]}] for row in told["rows"]]


def _answer(spec: Export, model: torch.nn.Module, tokenizer, tell) -> dict:
    prompts = prompts_of(spec)
    generation = (
        model.get_base_model().generation_config if hasattr(model, "get_base_model") else model.generation_config
    )
    ends = end_tokens(
        generation.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id, end_of_turn(tokenizer)
    )
    rows = []
    for number, messages in enumerate(prompts):
        prompt = token_ids(messages, tokenizer, open_turn=True)
        answer = greedy(model, prompt, ends)
        rows.append({"messages": messages, "prompt_tokens": prompt, "answer_tokens": answer})
        rows[-1]["answer"] = tokenizer.decode(answer, skip_special_tokens=True)
        tell((number + 1) / (len(prompts) + 1))
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    usual = plain.config._attn_implementation
    plain.set_attn_implementation(attention.NAME)
    for row in rows:
        row["log_probabilities"] = score(model, row["prompt_tokens"], row["answer_tokens"])
    plain.set_attn_implementation(usual)
    # A template that writes the date makes another prompt on another day.
    day = today() if "strftime_now" in tokenizer.chat_template else None
    write(Path(spec.reference), rows, day=day, parse_control_tokens=spec.parse_control_tokens)
    return read(Path(spec.reference))


@torch.inference_mode()
def score(model, prompt: list[int], answer: list[int]) -> list[float]:
    """The logarithms of the answer's probabilities, by the trainer's forward pass."""
    trained = np.zeros(len(prompt) + len(answer), dtype=bool)
    trained[len(prompt) :] = True
    packed = pack([Sequence(np.array(prompt + answer, dtype=np.int32), trained)])
    logits = forward(model, packed)
    return rounded(-cross_entropy(logits, packed.next_ids, reduction="none"))


def whole_folder(spec: Export) -> Path:
    """The checkpoint that stands by itself: the model's, or that which its adapter stands on."""
    folder = Path(spec.model.folder if spec.model.kind == "model" else spec.base.path)
    if not (folder / "config.json").exists():
        raise JobError("base_missing", f"The checkpoint of {spec.base.id} is not there any more.")
    return folder


def load_tokenizer(spec: Export):
    """The one that the job was trained with, which its result's folder holds."""
    from transformers import AutoTokenizer

    own = Path(spec.model.folder)
    folder = (
        own if (own / "tokenizer.json").exists() or (own / "tokenizer_config.json").exists() else whole_folder(spec)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = spec.parse_control_tokens
    if not tokenizer.chat_template:
        raise JobError(
            "base_missing",
            f"The model {spec.model.id} has no chat template, so conversations cannot be rendered for it.",
        )
    return tokenizer


def load_model(spec: Export) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    where = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    model = AutoModelForCausalLM.from_pretrained(whole_folder(spec), dtype="auto", **where)
    if spec.model.kind == "adapter":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, spec.model.folder)
    compute_in_float32(model)
    return model.eval()
