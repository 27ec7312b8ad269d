"""What the exported folder itself answers, loaded as anybody would: its weights, its tokenizer, its template, its end
tokens.
"""

from importlib.metadata import version
from pathlib import Path

from trainer.data.loss_mask import prompt_ids
from trainer.export.answering import greedy, log_probabilities
from trainer.export.folder import end_tokens


def runtime(base: Path | None) -> str:
    """What answers, as the export's record names it."""
    told = f"transformers {version('transformers')}"
    return f"{told}, peft {version('peft')}" if base else told


def answers(folder: Path, base: Path | None, reference: dict, tell) -> list[dict]:
    """`base`: what an adapter alone is loaded on; everything else is the folder's own. Raises JobError where it
    computes no numbers.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    tokenizer.parse_control_tokens = reference.get("parse_control_tokens", True)
    model = AutoModelForCausalLM.from_pretrained(base or folder, **where)
    ends = end_tokens(model.generation_config.eos_token_id)
    if base:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
        ends = end_tokens(ends, tokenizer.eos_token_id)
    model.eval()
    rows = []
    for number, row in enumerate(reference["rows"]):
        prompt = prompt_ids(tokenizer, row["messages"])
        answer = greedy(model, prompt, ends)
        rows.append(
            {
                "messages": row["messages"],
                "prompt_tokens": prompt,
                "answer_tokens": answer,
                "answer": tokenizer.decode(answer, skip_special_tokens=True),
                "log_probabilities": log_probabilities(model, prompt, row["answer_tokens"]),
            }
        )
        tell((number + 1) / len(reference["rows"]))
    return rows
