"""Shared by the tests of exports: adapters with random weights, and the spec of an export."""

import json
from pathlib import Path

from trainer.export.spec import Export, read_spec
from trainer.tests.conftest import CONVERTERS


def write_adapter(base: Path, folder: Path, **lora) -> Path:
    """Writes an adapter as PEFT does, with random weights instead of zeros."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(3)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype="auto"), LoraConfig(**{"task_type": "CAUSAL_LM", **lora})
    )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            torch.nn.init.normal_(parameter, std=0.2 if "lora_" in name else 0.5)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    if (base / "tokenizer.json").exists():
        AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def write_spec(folder: Path, base: Path, model: Path, /, **changes) -> Export:
    """`model`: a PEFT folder, or a whole checkpoint's."""
    kind = "adapter" if (model / "adapter_config.json").exists() else "model"
    folder.mkdir(exist_ok=True)
    values = {
        "export_id": "exp_1",
        "format": "huggingface",
        "quantization": None,
        "merge": True,
        "archive": None,
        "model": {
            "id": "ft_1",
            "name": "Tickets",
            "kind": kind,
            "method": "lora",
            "folder": str(model),
            "gguf": str(model.with_suffix(".gguf")),
        },
        "base": {"id": "test/tiny", "path": str(base), "gguf": None, "license": "apache-2.0"},
        "card": {
            "job_id": "job_1",
            "dataset": {"name": "tickets", "rows": 24},
            "created_at": "2026-11-23T01:20:00.000Z",
        },
        "probe": None,
        "reference": str(folder / "reference.json"),
        "converters": str(CONVERTERS),
        "threads": 1,
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) and value else value
    (folder / "spec.json").write_text(json.dumps(values))
    return read_spec(folder)


def silent(*_: object) -> None:
    pass
