"""Runs an exported ONNX folder in ONNX Runtime on the CPU."""

import json
import math
from pathlib import Path

import numpy as np

from trainer.runtime.errors import JobError

MAX_TOKENS = 64
# The graph computes logits for every given token: for a whole prompt at once they would take a gigabyte.
PROMPT_CHUNK = 64
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}

Cache = dict[str, np.ndarray]


class Session:
    """`run` is one call of the graph; `answer` gives what the checks compare."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Raises JobError("internal") if the folder has no graph, or one that does not load."""
        import onnxruntime

        graphs = sorted((folder / "onnx").glob("*.onnx"))
        if len(graphs) != 1:
            raise JobError("internal", f"The exported folder has {len(graphs)} graphs.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads would take cores from the service's answers.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if _dtype(folder) in ("fp32", "fp16"):
            # Prepacked copies for the CPU would double the weights' memory. Quantized weights need them.
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            self.session = onnxruntime.InferenceSession(str(graphs[0]), options, providers=["CPUExecutionProvider"])
        except Exception as problem:
            raise JobError("internal", f"ONNX Runtime does not load the exported graph: {problem}") from problem
        self._inputs = {value.name: value for value in self.session.get_inputs()}
        self._outputs = [value.name for value in self.session.get_outputs()]
        self.ends = _end_tokens(folder)

    def empty(self) -> Cache:
        """The cache before the first token: no keys and values, and zeros for what layers without attention keep."""
        cache: Cache = {}
        for name, value in self._inputs.items():
            if name.startswith("past"):
                shape = [0 if isinstance(length, str) else length for length in value.shape[1:]]
                cache[name] = np.zeros([1, *shape], TYPES[value.type])
        return cache

    def run(self, tokens: list[int], cache: Cache) -> tuple[np.ndarray, Cache]:
        """The logits after each token, float32 [tokens, vocabulary], and the cache with them behind those it had."""
        past = next(value for name, value in cache.items() if name.endswith(".key")).shape[2]
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        }
        if "position_ids" in self._inputs:
            feeds["position_ids"] = np.arange(past, past + len(tokens), dtype=np.int64)[None]
        results = self.session.run(None, feeds | cache)
        outputs = dict(zip(self._outputs, results, strict=True))
        logits = outputs.pop("logits")[0].astype(np.float32)
        names = {name.partition(".")[2]: name for name in cache}
        return logits, {names[name.removeprefix("present.")]: value for name, value in outputs.items()}

    def answer(self, prompt: list[int], given_answer: list[int]) -> tuple[list[int], list[float]]:
        """The greedy answer with its end token, and the log-probabilities of a given answer's tokens."""
        cache, before = self.empty(), np.empty((0, 0), np.float32)
        for first in range(0, len(prompt), PROMPT_CHUNK):
            logits, cache = self.run(prompt[first : first + PROMPT_CHUNK], cache)
            before = logits[-1:]
        following = self.run(given_answer[:-1], cache)[0] if len(given_answer) > 1 else before[:0]
        scores = _log_probabilities(np.concatenate([before, following]), given_answer)
        answer = [int(before[-1].argmax())]
        while len(answer) < MAX_TOKENS and answer[-1] not in self.ends:
            logits, cache = self.run(answer[-1:], cache)
            answer.append(int(logits[-1].argmax()))
        return answer, scores


def _log_probabilities(logits: np.ndarray, tokens: list[int]) -> list[float]:
    """Raises JobError("adapter_invalid") if one is not finite."""
    logits64 = logits[: len(tokens)].astype(np.float64)
    highest = logits64.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits64 - highest, np.array(tokens)[:, None], axis=-1)[:, 0]
    values = [round(float(value), 5) for value in chosen - np.log(np.exp(logits64 - highest).sum(axis=-1))]
    if not all(math.isfinite(value) for value in values):
        raise JobError("adapter_invalid", "The exported model computes no numbers (NaN or infinite).")
    return values


def _dtype(folder: Path) -> str | None:
    return json.loads((folder / "config.json").read_text()).get("transformers.js_config", {}).get("dtype")


def _end_tokens(folder: Path) -> set[int]:
    """From the generation defaults, else from the model's configuration."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ends: int | list[int] | None = json.loads((folder / name).read_text()).get("eos_token_id")
            if ends is not None:
                return set(ends) if isinstance(ends, list) else {ends}
    return set()
