"""Leaves out what transformers imports and a trainer that works alone does not use: a third of its time to start.

transformers marks a few functions for torch's compiler, and looks for tensors that are distributed over processes. For
that it imports torch._dynamo and torch.distributed.tensor: 900 modules and a second of processor time. The trainer
compiles nothing, and most trainers work alone.
"""

import importlib
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from trainer.runtime.postponed import as_loaded, load_meta_kernels

COMPILER = "torch._dynamo"
DISTRIBUTED = "torch.distributed"
# Needs nothing of its package. transformers imports it at once.
INDEPENDENT = f"{COMPILER}._trace_wrapped_higher_order_op"


def leave_out_compiler() -> None:
    """Replaces torch's compiler by a module that knows its marks, and loads the compiler when anything else is used."""
    torch = find_spec("torch")
    if COMPILER in sys.modules or torch is None or not torch.submodule_search_locations:
        return
    sys.modules[COMPILER] = _Marks([os.path.join(path, "_dynamo") for path in torch.submodule_search_locations])
    sys.meta_path.insert(0, _Submodules())


def leave_out_distributed_tensors() -> None:
    """Once torch is imported: peft asks of each weight whether it is a distributed tensor, and accelerate of a model
    that is saved whether it is spread over processes. In a trainer that works alone none is.
    """
    if not works_alone():
        return
    distributed = sys.modules.get(DISTRIBUTED)
    if distributed and not hasattr(distributed, "tensor"):
        vars(distributed)["tensor"] = _ClassOfNothing(f"{DISTRIBUTED}.tensor", "DTensor")
    if saving := sys.modules.get("accelerate.utils.other"):
        vars(saving)["is_torch_distributed_available"] = lambda: False


def works_alone() -> bool:
    """Whether this process trains without others (torchrun tells how many there are)."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _Marks(ModuleType):
    """What tells the compiler how to treat a function: without compiling it changes nothing."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(COMPILER)
        self.__path__ = path
        for name in ("allow_in_graph", "assume_constant_result", "disallow_in_graph"):
            setattr(self, name, _as_it_is)
        # Accelerate asks of a model that is saved whether it was compiled.
        self.eval_frame = _ClassOfNothing(f"{COMPILER}.eval_frame", "OptimizedModule")

    @staticmethod
    def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **_: object) -> Callable[..., Any]:
        return _as_it_is if fn is None else fn

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """An optimizer marks each of its steps so."""

    def __getattr__(self, name: str) -> object:
        # Python's own look-ups are no use of it.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load_compiler(), name)


class _ClassOfNothing(ModuleType):
    """A module whose class others compare objects with, while it has none. It is no entry of `sys.modules`: an import
    replaces it by the real module, and the use of another name imports that.
    """

    def __init__(self, module: str, name: str) -> None:
        super().__init__(module)
        setattr(self, name, type(name, (), {}))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def _load_compiler() -> ModuleType:
    if isinstance(sys.modules.get(COMPILER), _Marks):
        load_meta_kernels()
        del sys.modules[COMPILER]
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Submodules)]
    return importlib.import_module(COMPILER)


class _Submodules(MetaPathFinder):
    """Loads the compiler before a submodule that needs it."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{COMPILER}.") or name == INDEPENDENT:
            return None
        compiler = _load_compiler()
        # It has imported the most of its submodules itself.
        return as_loaded(name) or PathFinder.find_spec(name, compiler.__path__)
