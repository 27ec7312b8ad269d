"""Writes the model card: base, data, settings, results, and how to load the model. Escapes names that users gave."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.export.spec import Export
from trainer.runtime.json_object import is_object

LICENSE_ID = re.compile(r"^[a-z0-9][a-z0-9.-]{0,40}$")
HUB_ID = re.compile(r"^[\w][\w.-]{0,95}/[\w][\w.-]{0,95}$")
CHECK_HEADING = "## Checked"
LABELS = {
    "train_loss": "Mean loss over the epoch",
    "validation_loss": "Loss on held-out rows",
    "validation_exact": "Held-out rows that are exact",
}


def text_of(value: object) -> str:
    """One line of text without characters that Markdown or HTML would interpret."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:300]
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~])", r"\\\1", line).replace("&", "&amp;")


def front_matter(spec: Export, license_file: bool) -> str:
    """The card's metadata for the Hub and other tools."""
    import yaml

    library = "transformers.js" if spec.format == "onnx" else "peft" if spec.adapter_alone else "transformers"
    values: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-text-to-text" if spec.sees else "text-generation",
    }
    if HUB_ID.match(spec.base.id):
        values |= {"base_model": spec.base.id, "base_model_relation": "adapter" if spec.adapter_alone else "finetune"}
    if spec.base.license:
        if LICENSE_ID.match(spec.base.license):
            values["license"] = spec.base.license
        else:
            values |= {"license": "other", "license_name": spec.base.license[:200]}
            if license_file:
                values["license_link"] = "LICENSE"
    method = "full" if spec.model.method == "full" else "lora"
    values["tags"] = ["tunery", "sft", *([method] if method == "lora" else ["full-fine-tuning"]), "conversational"]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n"


def write_card(spec: Export, folder: Path) -> None:
    """Writes `README.md` into an exported folder. Its section of the check is filled by `add_check`."""
    facts = spec.card
    sections = [front_matter(spec, (folder / "LICENSE").exists()), f"# {text_of(spec.model.name)}\n"]
    what = "A LoRA adapter for" if spec.adapter_alone else "A fine-tune of"
    training_note = (
        f" Trained {text_of(str(facts['created_at']))[:40]} with Tunery"
        if facts.get("created_at")
        else " Trained with Tunery"
    )
    job = f", job {text_of(facts['job_id'])}" if facts.get("job_id") else ""
    sections.append(f"{what} {text_of(spec.base.id)}, method {text_of(spec.model.method)}.{training_note}{job}.\n")
    license_ = text_of(spec.base.license) if spec.base.license else "not known here; see the base model"
    sections.append(f"The base's license: {license_}. It holds for this model too.\n")
    for heading, values in (
        ("Training data", facts.get("dataset")),
        ("Settings", facts.get("settings")),
        ("Results", facts.get("results")),
    ):
        if rows := list(_rows(values)):
            sections.append(
                f"## {heading}\n\n| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)
            )
    sections.append(_loading(spec))
    sections.append(f"{CHECK_HEADING}\n\nNot yet: this card was written before the files were checked.\n")
    (folder / "README.md").write_text("\n".join(sections))


def _rows(values: object, before: str = "") -> Iterator[tuple[str, str]]:
    if not is_object(values):
        return
    for name, value in values.items():
        if is_object(value):
            yield from _rows(value, f"{before}{name}.")
        elif value is not None:
            yield text_of(LABELS.get(name, f"{before}{name}")), text_of(value)


# Transformers.js's names of the precisions.
ONNX_DTYPES = {"int4": "q4"}


def _loading(spec: Export) -> str:
    if spec.format == "onnx":
        precision = spec.quantization or "fp32"
        dtype = ONNX_DTYPES.get(precision, precision)
        return f"""## How to use it

```js
import {{ env, pipeline }} from '@huggingface/transformers'

env.localModelPath = '..' // the folder that this one lies in
const generate = await pipeline('text-generation', '{spec.folder_name}', {{ dtype: '{dtype}' }})
const [{{ generated_text }}] = await generate([{{ role: 'user', content: 'Hello' }}], {{ max_new_tokens: 200 }})
console.log(generated_text.at(-1).content)
```
"""
    if spec.sees:
        return _loading_with_pictures(spec)
    if spec.adapter_alone:
        base = spec.base.id if HUB_ID.match(spec.base.id) else "FOLDER_OF_THE_BASE"
        load = f"""from peft import PeftModel

folder = "."  # where this file lies
tokenizer = AutoTokenizer.from_pretrained(folder)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), folder)"""
        serve = f"vllm serve {base} --enable-lora --lora-modules tuned=. --max-lora-rank 64"
    else:
        load = """
folder = "."  # where this file lies
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)"""
        serve = "vllm serve ."
    return f"""## How to use it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
{load}
messages = [{{"role": "user", "content": "Hello"}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**prompt, max_new_tokens=200)
print(tokenizer.decode(answer[0][prompt["input_ids"].shape[1]:], skip_special_tokens=True))
```

With vLLM: `{serve}`
"""


def _loading_with_pictures(spec: Export) -> str:
    base = spec.base.id if HUB_ID.match(spec.base.id) else "FOLDER_OF_THE_BASE"
    load = (
        f'PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained("{base}"), folder)'
        if spec.adapter_alone
        else "AutoModelForImageTextToText.from_pretrained(folder)"
    )
    imported = "from peft import PeftModel\n" if spec.adapter_alone else ""
    return f"""## How to use it

```python
{imported}from transformers import AutoModelForImageTextToText, AutoProcessor

folder = "."  # where this file lies
processor = AutoProcessor.from_pretrained(folder)
model = {load}
question = [{{"type": "image", "path": "picture.png"}}, {{"type": "text", "text": "What is it?"}}]
messages = [{{"role": "user", "content": question}}]
options = {{"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}}
prompt = processor.apply_chat_template(messages, **options)
answer = model.generate(**prompt, max_new_tokens=200)
print(processor.decode(answer[0][prompt["input_ids"].shape[1]:], skip_special_tokens=True))
```
"""


def add_check(folder: Path, check: dict[str, Any]) -> None:
    """Writes the check's figures into the card's section for them."""
    file = folder / "README.md"
    if not file.exists():
        return
    before = file.read_text().partition(CHECK_HEADING)[0]
    lines = [
        f"Before these files were handed out, {text_of(check.get('runtime'))} answered "
        f"{text_of(check.get('prompts'))} prompts from them,",
        "without sampling, and the answers were compared with those of the model in training.",
    ]
    rows = {
        "Answers that are the same to the end": _share(check.get("identical")),
        "Tokens that are the same before answers part": _share(check.get("matching_tokens")),
        "Mean difference of log-probabilities (nats)": text_of(check.get("log_probability_difference")),
    }
    table = "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    file.write_text(f"{before}{CHECK_HEADING}\n\n{' '.join(lines)}\n\n{table}")


def _share(value: object) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "none"
