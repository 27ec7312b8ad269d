from os import PathLike

import torch

def save_file(
    tensors: dict[str, torch.Tensor], filename: str | PathLike[str], metadata: dict[str, str] | None = None
) -> None: ...
def load_file(filename: str | PathLike[str], device: str | int = "cpu") -> dict[str, torch.Tensor]: ...
