"""Renders rows as training does: `python -m tests.support.render_rows REQUEST.json` prints, for each template, the
prompt of each row, or null where it is refused, which of its control texts an assistant may spell, and what is before
the learned text of `answer` (a canonical row with one answer that has thoughts), with whether that asks for thoughts.
REQUEST: `tokenizer` (a folder), `templates` (with `source` and `controls`), `rows` (canonical rows), `answer`.
"""

import json
import sys
from pathlib import Path

from trainer.cli.count import hide_torch
from trainer.data.answer_texts import answer_texts
from trainer.data.loss_mask import rendering, thinking_settings, training_renderings
from trainer.data.rows import parse_row
from trainer.runtime.errors import JobError


def main() -> None:
    hide_torch()
    from transformers import AutoTokenizer

    request = json.loads(Path(sys.argv[1]).read_text())
    found = []
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
    for template in request["templates"]:
        tokenizer.chat_template = template["source"]
        prompts = [prompt_of(row, tokenizer) for row in request["rows"]]
        found.append(
            {
                "prompts": prompts,
                "answer_texts": answer_texts(tokenizer, template["controls"]),
                "asked": asked_by(request["answer"], tokenizer),
            }
        )
    print(json.dumps(found))


def asked_by(row: dict, tokenizer) -> dict | None:
    messages = parse_row(json.dumps(row).encode(), 1)
    try:
        (turn,) = training_renderings(messages, tokenizer)
    except JobError:
        return None
    return {
        "prompt": turn.text[: turn.spans[0][0]].replace(turn.mark or "\0", ""),
        "for_thoughts": bool(thinking_settings(tokenizer, before_calls=False)),
    }


def prompt_of(row: dict, tokenizer) -> str | None:
    try:
        rendered = rendering(parse_row(json.dumps(row).encode(), 1), tokenizer, open_turn=True)
        return rendered.text.replace(rendered.mark or "\0", "")
    except JobError:
        return None


main()
