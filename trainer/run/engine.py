"""The engine's own computation of a model's files, for comparisons with the trainer's."""

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.runtime.errors import without_paths

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Engine:
    """What scores rows: the program of Node, which runs the engine's own."""

    node: Path

    def load(self, gguf: Path) -> None:
        """Loads the file alone. Raises RuntimeError with the engine's reason not to."""
        self._run(gguf, [])

    def compute(self, gguf: Path) -> None:
        """Computes a few tokens. Raises RuntimeError with the engine's reason not to."""
        self._run(gguf, [list(range(8))])

    def read_pictures(self, gguf: Path, projector: Path) -> None:
        """Reads a small picture with the projector. Raises RuntimeError with the engine's reason not to."""
        self._run(gguf, [], projector=projector)

    def score(self, gguf: Path, rows: "torch.Tensor", adapter: Path | None = None) -> "dict[str, torch.Tensor]":
        """Log-probabilities of all tokens but the first, [rows, tokens - 1], of `base` and `adapter`. Raises
        RuntimeError with the engine's reason.
        """
        import torch

        # JSON has no NaN.
        return {
            name: torch.tensor([[float("nan") if value is None else value for value in row] for row in scores])
            for name, scores in self._run(gguf, rows.tolist(), adapter=adapter).items()
            if scores is not None
        }

    def _run(self, gguf: Path, rows: list[list[int]], **files: Path | None) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(rows, file)
            file.flush()
            program = [self.node, ROOT / "engine/score.ts", gguf, ROOT / ".local/llama/lib", file.name]
            child = subprocess.Popen(
                [*map(str, program), *(f"--{name}={file}" for name, file in files.items() if file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            with child:
                # It ends when its input closes: not before its answer is here.
                assert child.stdout and child.stderr
                answer, reason = child.stdout.read(), child.stderr.read()
        if child.returncode < 0:
            raise RuntimeError("its library ends the process, as it does where a field of the configuration is wrong")
        if child.returncode:
            raise RuntimeError(without_paths((reason.strip().splitlines() or ["it names no reason"])[-1]))
        return json.loads(answer)
