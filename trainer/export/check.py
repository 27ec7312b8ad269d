"""The answers of the exported folder itself, loaded as any user would: its weights, tokenizer, template and end
tokens.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer.data.ends import end_tokens
from trainer.data.loss_mask import prompt_ids
from trainer.export.answering import greedy, log_probabilities
from trainer.export.seeing import eyes_of, load, with_adapter
from trainer.runtime.protocol import Report


def runtime(base: Path | None) -> str:
    """The runtime's name for the export's record."""
    name = f"transformers {version('transformers')}"
    return f"{name}, peft {version('peft')}" if base else name


def answers(folder: Path, base: Path | None, reference: dict[str, Any], report: Report) -> list[dict[str, Any]]:
    """`base`: the base for an adapter alone; everything else comes from the folder. Raises JobError if results are not
    finite.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = reference.get("parse_control_tokens", True)
    model = load(base or folder)
    ends = end_tokens(model.generation_config.eos_token_id)
    if base:
        model = with_adapter(model, folder)
        ends = end_tokens(ends, tokenizer.eos_token_id)
    model.eval()
    eyes = eyes_of(model, tokenizer, folder)
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(reference["rows"]):
        prompt = eyes.prompt(row["messages"]) if eyes else prompt_ids(tokenizer, row["messages"])
        answer, _ = greedy(model, prompt, ends)
        rows.append(
            {
                "messages": row["messages"],
                "prompt_tokens": prompt if isinstance(prompt, list) else prompt.comparable(),
                "answer_tokens": answer,
                "answer": tokenizer.decode(answer, skip_special_tokens=True),
                "log_probabilities": log_probabilities(model, prompt, row["answer_tokens"]),
            }
        )
        report((number + 1) / len(reference["rows"]))
    return rows
