"""Predicts the least memory of a GPU that a run needs, on a machine without one: `python -m trainer.cli.predict_memory
RUN_FOLDER`. Reads the run's spec and its base's configuration, and loads no weights.
"""

from pathlib import Path

from trainer.cli.train import run_job
from trainer.runtime.protocol import Protocol
from trainer.runtime.spec import Spec

# The smallest pass that a run on a GPU takes (limits_of in trainer/run/loop.py), unless a row is longer.
LEAST_TOKENS = 2048
BF16_BYTES = 2


def predict(spec: Spec, folder: Path, protocol: Protocol) -> bool:
    """Emits the `result` line with the least memory of a GPU, in MB. True: it was not stopped."""
    import torch
    from transformers import AutoConfig

    from trainer.run import memory

    config = AutoConfig.from_pretrained(spec.base.path, local_files_only=True, trust_remote_code=False)
    tokens = max(LEAST_TOKENS, min(spec.training.max_length, config.get_text_config().max_position_embeddings))
    needed = memory.predicted_bytes(memory.shape_of(config), spec, BF16_BYTES, tokens, tokens, torch.device("cuda"))
    protocol.emit("result", "Predicted", least_mb=round(needed / 1e6))
    return True


if __name__ == "__main__":
    run_job(predict)
