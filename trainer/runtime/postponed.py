"""Postpones what torch imports and a trainer rarely uses: each part loads at its first use.

`import torch` also loads its quantization, masked tensors, and 9,000 lines of Python that compute shapes on the meta
device. The last need 200 more modules, and 500 of sympy once they run, while C++ knows the shapes of nearly all
operations: half a second of processor time.
"""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

META_KERNELS = "torch._meta_registrations"
# Any of these is one that the meta device uses.
KEYS_FOR_META = (
    "Meta",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
POSTPONED = frozenset(
    {
        META_KERNELS,
        "torch.masked",
        "torch.nn.intrinsic",
        "torch.nn.qat",
        "torch.nn.quantizable",
        "torch.nn.quantized",
        "torch.quantization",
    }
)


def postpone_modules() -> None:
    """Lets an import of torch that follows leave these modules to their first use."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Postponing())


def load_meta_kernels_on_demand() -> None:
    """Once torch is imported: loads its shapes in Python for the first operation on the meta device that C++ has no
    shapes for.
    """
    if not _is_postponed(META_KERNELS) or _substitutes:
        return
    import torch
    from torch._opaque_base import OpaqueBaseMeta
    from torch.library import Library

    internals: Any = vars(torch)["_C"]
    # torch does it among the modules that are postponed, and its generators want it.
    internals._set_generator_metaclass(OpaqueBaseMeta)
    substitutes: Any = Library("aten", "IMPL")
    in_cpp = {name for key in KEYS_FOR_META for name in internals._dispatch_get_registrations_for_dispatch_key(key)}
    for name in internals._dispatch_get_all_op_names():
        if name.startswith("aten::") and name not in in_cpp:
            # What `impl` of the library adds takes 20 times as long.
            substitutes.m.impl(name.removeprefix("aten::"), "Meta", _loading_then(name), False)
    _substitutes.append(substitutes)


def load_meta_kernels() -> None:
    """Loads torch's shapes in Python, unless they are."""
    while _substitutes:
        _substitutes.pop()._destroy()
    if _is_postponed(META_KERNELS):
        # Any use loads a module.
        _ = sys.modules[META_KERNELS].activate_meta


def _loading_then(name: str) -> Callable[..., Any]:
    """Computes the shapes of this operation, once they are loaded."""

    def load_and_repeat(*args: Any, **kwargs: Any) -> Any:
        import torch

        load_meta_kernels()
        packet, _, overload = name.removeprefix("aten::").partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")(*args, **kwargs)

    return load_and_repeat


_substitutes: list[Any] = []
_loading = RLock()


def _is_postponed(name: str) -> bool:
    return isinstance(sys.modules.get(name), _Postponed)


class _Postponed(ModuleType):
    """A module whose code has not run. Its own names and its submodules load it, what Python itself asks does not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__path__", "__all__"):
            raise AttributeError(name)
        # The module's own code asks, too, while it runs: of what is not there yet.
        with _loading:
            own = vars(self)
            if load := own.pop("__load__", None):
                try:
                    load()
                except BaseException:
                    own["__load__"] = load
                    raise
        return object.__getattribute__(self, name)


class _PostponingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Without a path, an import of a submodule asks for it.
        path = vars(module).pop("__path__", None)

        def load() -> None:
            if path is not None:
                module.__path__ = path
            self.loader.exec_module(module)
            module.__class__ = ModuleType

        vars(module)["__load__"] = load
        module.__class__ = _Postponed


class _Postponing(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name not in POSTPONED:
            # To look for a submodule has loaded the package, which may have imported it itself.
            return as_loaded(name) if name.rpartition(".")[0] in POSTPONED else None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            spec.loader = _PostponingLoader(spec.loader)
        return spec


def as_loaded(name: str) -> ModuleSpec | None:
    """For a finder: what gives an import the module that has been loaded since it looked for it, if there is one."""
    if name not in sys.modules:
        return None
    spec = copy(sys.modules[name].__spec__)
    assert spec, "Python has set it"
    spec.loader = _Loaded()
    return spec


class _Loaded(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass
