"""An exported ONNX folder, run in ONNX Runtime on the CPU."""

import json
import math
from pathlib import Path

import numpy as np

from trainer.runtime.errors import JobError

MOST_TOKENS = 64
# Logits are computed for each token that is given: of a whole prompt at once they would take a gigabyte.
AT_ONCE = 64
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}

Cache = dict[str, np.ndarray]


class Session:
    """`run` is one call of the graph; `answer` what the checks ask of it."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Raises JobError("internal") where the folder has no graph, or one that does not load."""
        import onnxruntime

        graphs = sorted((folder / "onnx").glob("*.onnx"))
        if len(graphs) != 1:
            raise JobError("internal", f"The exported folder has {len(graphs)} graphs.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that wait for work by spinning take the cores from the service's answers.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if _dtype(folder) in ("fp32", "fp16"):
            # The copies in the order that the CPU likes best would double what the weights take. Quantized ones compute
            # by them alone.
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            self.session = onnxruntime.InferenceSession(str(graphs[0]), options, providers=["CPUExecutionProvider"])
        except Exception as problem:
            raise JobError("internal", f"ONNX Runtime does not load the exported graph: {problem}") from problem
        self._inputs = {each.name: each for each in self.session.get_inputs()}
        self._outputs = [each.name for each in self.session.get_outputs()]
        self.ends = _end_tokens(folder)

    def empty(self) -> Cache:
        """What stands in for the cache before the first token."""
        made = {}
        for name, each in self._inputs.items():
            if name.startswith("past_key_values."):
                made[name] = np.zeros([1, each.shape[1], 0, each.shape[3]], TYPES[each.type])
        return made

    def run(self, tokens: list[int], cache: Cache) -> tuple[np.ndarray, Cache]:
        """The logits after each of the tokens, which follow what the cache holds, and the cache with them."""
        past = next(iter(cache.values())).shape[2]
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        }
        if "position_ids" in self._inputs:
            feeds["position_ids"] = np.arange(past, past + len(tokens), dtype=np.int64)[None]
        told = dict(zip(self._outputs, self.session.run(None, feeds | cache), strict=True))
        logits = told.pop("logits")[0].astype(np.float32)
        return logits, {name.replace("present.", "past_key_values."): value for name, value in told.items()}

    def answer(self, prompt: list[int], given: list[int]) -> tuple[list[int], list[float]]:
        """The likeliest answer, with the token that ended it, and how likely the tokens of a given one are."""
        cache = self.empty()
        for first in range(0, len(prompt), AT_ONCE):
            logits, cache = self.run(prompt[first : first + AT_ONCE], cache)
        before = logits[-1:]
        following = self.run(given[:-1], cache)[0] if len(given) > 1 else before[:0]
        scores = _log_probabilities(np.concatenate([before, following]), given)
        answer = [int(before[-1].argmax())]
        while len(answer) < MOST_TOKENS and answer[-1] not in self.ends:
            logits, cache = self.run(answer[-1:], cache)
            answer.append(int(logits[-1].argmax()))
        return answer, scores


def _log_probabilities(logits: np.ndarray, tokens: list[int]) -> list[float]:
    """Raises JobError("adapter_invalid") where one is none."""
    wide = logits[: len(tokens)].astype(np.float64)
    highest = wide.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(wide - highest, np.array(tokens)[:, None], axis=-1)[:, 0]
    values = [round(float(value), 5) for value in chosen - np.log(np.exp(wide - highest).sum(axis=-1))]
    if not all(math.isfinite(value) for value in values):
        raise JobError("adapter_invalid", "The exported model computes no numbers (NaN or infinite).")
    return values


def _dtype(folder: Path) -> str | None:
    return json.loads((folder / "config.json").read_text()).get("transformers.js_config", {}).get("dtype")


def _end_tokens(folder: Path) -> set[int]:
    """Of the generation defaults, else of the model's configuration."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ends = json.loads((folder / name).read_text()).get("eos_token_id")
            if ends is not None:
                return set(ends) if isinstance(ends, list) else {ends}
    return set()
