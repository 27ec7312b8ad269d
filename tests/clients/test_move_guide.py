"""Runs the Python code of docs/guides/move-from-openai.md, in order, as it is written."""

import json
import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs/guides/move-from-openai.md"


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    rows = [
        {"messages": [{"role": "user", "content": f"ticket {number}"}, {"role": "assistant", "content": "shipping"}]}
        for number in range(8)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("ft:HuggingFaceTB/SmolLM2-135M-Instruct:")
    assert {json.loads(line)["custom_id"] for line in printed.strip().splitlines()[-2:]} == {"ticket-0", "ticket-1"}
