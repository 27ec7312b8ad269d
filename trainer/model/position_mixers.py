"""Keeps a pack's documents apart in layers that mix positions outside of attention (state spaces, delta rules,
convolutions), and finds out whether a model keeps them apart at all.

Nothing here knows a family. A part of a decoder layer mixes positions if its results for one document depend on
another; such parts compute each document as its own row of a batch, so that each begins with an empty state.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from trainer.data.layout import Layout, layout_of
from trainer.model.attention import Gather, Scatter
from trainer.model.attention_rows import scatter
from trainer.model.model import Model, decoder_of
from trainer.model.scans import Pass, available, with_kernels

# Documents of the check: their lengths are no other dimension of a model, nor is their sum.
LENGTHS = (19, 22)
# Their ids: beyond control tokens, within every vocabulary.
FIRST_ID, LAST_ID = 300, 1000
# Relative differences of vectors that are rounding, by the bytes of a number: of any of the same computation with other
# tokens beside it, which nothing but experts round differently, and of half of them where layers compute otherwise.
SAME, OTHERWISE = {4: 1e-5, 2: 0.01}, {4: 1e-3, 2: 0.2}


class Apart:
    """Mixed into a module's class: it computes each document of a pack alone."""

    current: Pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the class computes. Tensors [1, tokens, ...] of a pack go to it, and come back, document by document."""
        compute: Callable[..., Any] = super().forward  # type: ignore[misc]
        layout = self.current.layout
        if layout is None or (layout.shared == 0 and len(layout.blocks) == 1 and layout.blocks[0][0] == 1):
            return compute(*args, **kwargs)
        tokens = layout.tokens
        values = {**dict(enumerate(args)), **kwargs}
        rows = {key: _rows_of(value, layout) for key, value in values.items() if _is_of_tokens(value, tokens)}
        results, start = [], 0
        for documents, length in layout.blocks:
            end = start + documents * length
            block = {key: value[start:end].unflatten(0, (documents, length)) for key, value in rows.items()}
            results.append(
                compute(
                    *(block.get(index, value) for index, value in enumerate(args)),
                    **{name: block.get(name, value) for name, value in kwargs.items()},
                )
            )
            start = end
        first = [result[0] if isinstance(result, tuple) else result for result in results]
        joint = Gather.apply(torch.cat([each.flatten(0, 1) for each in first]), layout)[None]
        return (joint, *results[0][1:]) if isinstance(results[0], tuple) else joint


def _is_of_tokens(value: Any, tokens: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[:2] == (1, tokens)


def _rows_of(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    return Scatter.apply(value[0], layout) if value.is_floating_point() else scatter(value[0], layout)


def keep_apart(base: Model) -> bool:
    """Makes a base whose attention is `packed_attention` compute a pack's documents apart from each other. Returns
    whether it does.

    If it does not, the base gets transformers' attention, for one document at a time.
    """
    try:
        current = Pass()
        check = Check(base, current)
        mixers = check.mixers()
        if mixers:
            _announce_layouts(base, current)
            _compute_with_kernels(base, mixers, check, current)
            _separate(base, check.mixers(), current)
        apart = not (mixers and check.mixers()) and check.is_apart()
    except Exception as problem:
        # An unknown family may fail in any way where its parts get what they do not expect.
        apart, base.apart_problem = False, f"{type(problem).__name__}: {problem}"
    base.keeps_apart = apart
    if not apart:
        name = "sdpa" if getattr(base, "_supports_sdpa", True) else "eager"
        base.set_attn_implementation({"": name, "text_config": name})
    return apart


def keeps_apart(model: Model) -> bool:
    """Whether documents of a model of `load_base` may share a pass."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(base, "keeps_apart", True)


def _announce_layouts(base: Model, current: Pass) -> None:
    """Makes a base say which pack it computes."""
    decoder = cast(torch.nn.Module, decoder_of(base))

    def begin(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        current.layout = kwargs.get("layout")

    def end(*_: object) -> None:
        current.layout = None

    decoder.register_forward_pre_hook(begin, with_kwargs=True)
    decoder.register_forward_hook(end, always_call=True)


def _compute_with_kernels(base: Model, mixers: list[torch.nn.Module], check: "Check", current: Pass) -> None:
    """Gives mixers the kernels that keep documents apart, where these leave nothing that mixes."""
    if not available(check.device):
        return
    before = {type(mixer) for mixer in mixers}
    own = {each: replaced for each in before if (replaced := with_kernels(each, current, check.device))}
    _change_classes(base, own)
    mixing = {type(mixer) for mixer in check.mixers()}
    _change_classes(base, {replaced: each for each, replaced in own.items() if replaced in mixing})


def _separate(base: Model, mixers: list[torch.nn.Module], current: Pass) -> None:
    """Makes all modules of the classes of these compute documents apart."""
    classes = {type(mixer) for mixer in mixers}
    _change_classes(base, {each: type(each.__name__, (Apart, each), {"current": current}) for each in classes})


def _change_classes(base: Model, classes: dict[type[torch.nn.Module], type[torch.nn.Module]]) -> None:
    """A class, not a replaced forward pass: that is what `served` replaces."""
    for module in cast(torch.nn.Module, decoder_of(base)).modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]


@dataclass
class Call:
    """One call of a part of a decoder layer."""

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def first_calls(model: Model) -> list[tuple[torch.nn.Module, dict[str, Any]]]:
    """A decoder layer of each structure, and what a pass of two documents calls it with beside the states: on the CPU,
    in float32. Positions are far apart, so that what depends on large ones shows.
    """
    check = Check(model.get_base_model(), Pass())
    calls: list[tuple[torch.nn.Module, dict[str, Any]]] = []

    def record(module: torch.nn.Module, _args: object, kwargs: dict[str, Any]) -> None:
        named = {name: _on_cpu(value) for name, value in kwargs.items() if name != "hidden_states"}
        calls.append((module, {**named, "layout": layout_of([0], list(LENGTHS))}))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in check.kinds]
    try:
        check.run(check.documents, check.step)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _on_cpu(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_on_cpu, value))
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu().float() if value.is_floating_point() else value.cpu()


class _Enough(Exception):
    """Ends a pass after the last layer that it needs."""


class Check:
    """Passes through the first decoder layers of a base, up to the last that has a structure of its own."""

    def __init__(self, base: Model, current: Pass) -> None:
        self.current = current
        self.base, self.decoder = base, cast(torch.nn.Module, decoder_of(base))
        self.layers = _layers_of(self.decoder)
        seen: set[str] = set()
        self.kinds: list[torch.nn.Module] = []
        self.last = self.layers[0]
        for layer in self.layers:
            if (structure := structure_of(layer)) not in seen:
                seen.add(structure)
                self.kinds.append(layer)
                self.last = layer
        longest = getattr(base.config.get_text_config(), "max_position_embeddings", None) or sum(LENGTHS)
        self.step = max(1, (longest - 1) // max(LENGTHS))
        weight = base.get_input_embeddings().weight
        self.device, self.bytes = weight.device, min(4, weight.dtype.itemsize)
        generator = torch.Generator().manual_seed(1)
        self.documents = [
            torch.randint(FIRST_ID, min(LAST_ID, weight.shape[0]), (length,), generator=generator).to(self.device)
            for length in LENGTHS
        ]

    def mixers(self) -> list[torch.nn.Module]:
        """The parts of layers whose results for the second document depend on the first."""
        calls: list[Call] = []

        def record(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.append(Call(module, args, kwargs))

        parts = [part for layer in self.kinds for part in layer.children()]
        hooks = [part.register_forward_pre_hook(record, with_kwargs=True) for part in parts]
        try:
            self.run(self.documents)
        finally:
            for hook in hooks:
                hook.remove()
        return [call.module for call in calls if self._mixes(call)]

    @torch.no_grad()
    def _mixes(self, call: Call) -> bool:
        values = [*call.args, *call.kwargs.values()]
        if not any(_is_of_tokens(value, sum(LENGTHS)) and value.is_floating_point() for value in values):
            return False

        def changed(value: Any) -> Any:
            if not _is_of_tokens(value, sum(LENGTHS)) or not value.is_floating_point():
                return value
            first, second = value.split(LENGTHS, dim=1)
            return torch.cat([first.flip(1) * -1, second], dim=1)

        self.current.layout = layout_of([0], list(LENGTHS), self.device)
        before = call.module(*call.args, **call.kwargs)
        after = call.module(*map(changed, call.args), **{name: changed(each) for name, each in call.kwargs.items()})
        self.current.layout = None
        return bool((relative_differences(self._second(before), self._second(after)) > SAME[self.bytes]).any())

    def is_apart(self) -> bool:
        """Whether the second document of a pack has the vectors that it has alone, with the attention that
        transformers has for every family.
        """
        packed = self._second(self.run(self.documents))
        implementation = self.base.config._attn_implementation
        text = self.base.config.get_text_config()
        inner = text._attn_implementation
        self.base.set_attn_implementation({"": "eager", "text_config": "eager"})
        try:
            alone = self._second(self.run(self.documents[1:]))
        finally:
            self.base.set_attn_implementation({"": implementation, "text_config": inner})
        return bool(relative_differences(packed, alone).median() < OTHERWISE[self.bytes])

    @torch.no_grad()
    def run(self, documents: list[torch.Tensor], step: int = 1) -> Any:
        """What the last of the layers returns for a pack of documents, each token ids int64 [length], whose positions
        are `step` apart.
        """
        lengths = [len(document) for document in documents]
        results: list[Any] = []

        def stop(_module: object, _args: object, result: Any) -> None:
            results.append(result)
            raise _Enough

        hook = self.last.register_forward_hook(stop)
        try:
            self.decoder(
                input_ids=torch.cat(documents)[None],
                position_ids=torch.cat([torch.arange(length, device=self.device) for length in lengths])[None] * step,
                layout=layout_of([0], lengths, self.device),
                use_cache=False,
            )
        except _Enough:
            pass
        finally:
            hook.remove()
        return results[0]

    @staticmethod
    def _second(result: Any) -> torch.Tensor:
        """The vectors of the second document, float32 [..., length, width]."""
        states = (result[0] if isinstance(result, tuple) else result).float()
        return states[..., -LENGTHS[1] :, :]


def relative_differences(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The relative difference of each vector of [..., width]."""
    return (one - other).norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-9)


def _layers_of(decoder: torch.nn.Module) -> list[torch.nn.Module]:
    layers = getattr(decoder, "layers", None)
    if isinstance(layers, torch.nn.ModuleList):
        return list(layers)
    lists = [module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len))


def structure_of(layer: torch.nn.Module) -> str:
    """What two layers that compute alike have in common: their parts, sizes, switches and types, but no number."""
    switches: Iterable[Any] = (
        (name, key, value)
        for name, module in layer.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and key != "layer_idx" and not key.startswith("_")
    )
    types = {kind for module in layer.modules() if (kind := _type_of(module)) is not None}
    return f"{layer!r} {list(switches)} {sorted(types)}"


def _type_of(module: torch.nn.Module) -> str | None:
    """The type of the layer that a module says it is of."""
    kinds, index = getattr(getattr(module, "config", None), "layer_types", None), getattr(module, "layer_idx", None)
    return kinds[index] if kinds and isinstance(index, int) and index < len(kinds) else None
