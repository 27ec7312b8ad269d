# What the trainer uses of ONNX Runtime, which has no types.
from collections.abc import Sequence
from typing import Any

import numpy as np

class SessionOptions:
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int
    def add_session_config_entry(self, name: str, value: str) -> None: ...

class NodeArg:
    name: str
    type: str
    shape: list[Any]

class InferenceSession:
    def __init__(self, path: str, sess_options: SessionOptions, *, providers: Sequence[str]) -> None: ...
    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    # Tensors alone where the graph has no maps or sequences of them.
    def run(self, output_names: Sequence[str] | None, input_feed: dict[str, np.ndarray]) -> list[np.ndarray]: ...
