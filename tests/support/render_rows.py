"""Renders rows as training does: `python -m tests.support.render_rows REQUEST.json` prints, for each template, the
prompt of each row, or null where it is refused, and which of its control texts an assistant may spell. REQUEST:
`tokenizer` (a folder), `templates` (with `source` and `controls`), `rows` (canonical rows).
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

from trainer.data.answer_texts import answer_texts
from trainer.data.loss_mask import rendering
from trainer.data.rows import parse_row
from trainer.runtime.errors import JobError


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    found = []
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
    for template in request["templates"]:
        for cached in ("_control_text", "_thoughts_place", "_turns_whole", "_call_form", "_thoughts_alone"):
            vars(tokenizer).pop(cached, None)
        tokenizer.chat_template = template["source"]
        prompts = [prompt_of(row, tokenizer) for row in request["rows"]]
        found.append({"prompts": prompts, "answer_texts": answer_texts(tokenizer, template["controls"])})
    print(json.dumps(found))


def prompt_of(row: dict, tokenizer) -> str | None:
    try:
        rendered = rendering(parse_row(json.dumps(row).encode(), 1), tokenizer, open_turn=True)
        return rendered.text.replace(rendered.mark or "\0", "")
    except JobError:
        return None


main()
