"""The code of docs/guides/tinker.md, as it is written."""

import re
from pathlib import Path

import transformers
from tinker_cookbook.tokenizer_utils import register_tokenizer

GUIDE = Path(__file__).parents[2] / "docs/guides/tinker.md"


def test_the_loop_of_the_guide_runs(base, tokenizer, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    loop, saving, registering = blocks
    # Hugging Face cannot be reached.
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    names: dict = {}
    exec(loop, names)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[0]) for line in lines[:10]]
    assert losses[-1] < losses[0] / 2
    assert "heliotrope" in lines[-1]
    exec(saving, names)
    assert names["path"].endswith("/sampler_weights/door")
    exec(registering, names)
    register_tokenizer(base, lambda: tokenizer)
    names["service"].close("success").result()
