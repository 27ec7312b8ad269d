from typing import Any

import onnx

class MatMulNBitsQuantizer:
    # It wraps the model that it was given.
    model: Any
    def __init__(
        self, model: onnx.ModelProto, *, bits: int, block_size: int, is_symmetric: bool, accuracy_level: int
    ) -> None: ...
    def process(self) -> None: ...
