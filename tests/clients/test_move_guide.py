"""Runs the Python code of docs/guides/move-from-openai.md, in order, as it is written."""

import json
import os
import re
import subprocess
from pathlib import Path

import openai
from test_openai_flows import until

GUIDE = Path(__file__).parents[2] / "docs/guides/move-from-openai.md"


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    rows = [
        {"messages": [{"role": "user", "content": f"ticket {number}"}, {"role": "assistant", "content": "shipping"}]}
        for number in range(8)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    client = openai.OpenAI()
    graded = client.evals.create(
        name="codes",
        data_source_config={"type": "custom", "item_schema": {"type": "object"}, "include_sample_schema": True},
        testing_criteria=[
            {
                "type": "string_check",
                "name": "same",
                "input": "{{sample.output_text}}",
                "reference": "{{item.code}}",
                "operation": "eq",
            }
        ],
    )
    rows = [{"item": {"code": code}, "sample": {"output_text": "a"}} for code in ("a", "b")]
    run = client.evals.runs.create(
        graded.id, data_source={"type": "jsonl", "source": {"type": "file_content", "content": rows}}
    )
    until(lambda: client.evals.runs.retrieve(run.id, eval_id=graded.id).status == "completed")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("ft:HuggingFaceTB/SmolLM2-135M-Instruct:")
    assert {json.loads(line)["custom_id"] for line in printed.strip().splitlines()[-2:]} == {"ticket-0", "ticket-1"}
    # The exported eval is imported where it came from.
    imported = subprocess.run(
        [GUIDE.parents[2] / "tunery", "import", "openai-evals", f"{graded.id}.json", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TUNERY_URL": os.environ["OPENAI_BASE_URL"], "TUNERY_KEY": os.environ["OPENAI_API_KEY"]},
    )
    [made] = json.loads(imported.stdout)
    again = until(
        lambda: (
            (found := client.evals.runs.retrieve(made["runs"][0], eval_id=made["eval"])).status == "completed" and found
        )
    )
    assert (again.result_counts.passed, again.result_counts.failed) == (1, 1)
    assert again.metadata["passed_there"] == "1"
