"""Writes zips of adapters that are not plain, as PEFT saves them: `-m tests.support.foreign_adapters BASE OUT`."""

import sys
import zipfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

IDS = torch.arange(60)[None] % 50 + 20
KINDS = {
    "pissa": {"init_lora_weights": "pissa"},
    "corda": {"init_lora_weights": "pissa"},
    "rslora": {"use_rslora": True, "rank_pattern": {"q_proj": 4}},
    "dora": {"use_dora": True, "modules_to_save": ["lm_head"]},
    "embeddings": {},
    "head": {"target_modules": ["q_proj", "lm_head"]},
}


def main() -> None:
    base, out = sys.argv[1], Path(sys.argv[2])
    for name, config in KINDS.items():
        torch.manual_seed(0)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
            LoraConfig(
                **{"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM"} | config
            ),
        )
        folder = out / name
        if name == "corda":
            model.peft_config["default"].init_lora_weights = name
            model.save_pretrained(folder / "initial")
        optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.01)
        for _ in range(8):
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(folder, save_embedding_layers=True if name == "embeddings" else "auto")
        with zipfile.ZipFile(out / f"peft-{name}.zip", "w") as archive:
            for file in folder.rglob("*"):
                archive.write(file, Path(name) / file.relative_to(folder))


if __name__ == "__main__":
    main()
