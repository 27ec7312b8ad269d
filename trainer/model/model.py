"""What the trainer needs of a model and of its layers. transformers and PEFT assemble their classes from parts whose
attributes type checkers cannot see, so a model is cast to `Model` where it is loaded.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import torch
from peft.tuners.lora.layer import LoraLayer

if TYPE_CHECKING:
    from trainer.model.fast_layers import FastLayer
    from trainer.model.served import Served


class PictureVectors(Protocol):
    """Where a pack's pictures get their vectors from. `unprojected`: these are what the projector reads."""

    unprojected: bool

    def rows(self, vectors: torch.Tensor) -> torch.Tensor:
        """The vectors with these numbers, int64 [n]: [n, width]."""
        ...


class Model(Protocol):
    """The part of transformers' PreTrainedModel, and of PEFT's PeftModel on one, that the trainer uses.

    Added by the trainer: `served` (load.py), how it computes as it will be served; `features` (the loop), the vectors
    of pictures, None for text alone; `fast_layers` (fast_layers.py), what takes the place of all decoder layers;
    `body_and_head` (there too), the decoder and the head's frozen weights [vocabulary, width] where `HeadLoss` may
    compute the loss; `head_scale` (fast_parts.py), what that multiplies logits with; `keeps_apart`
    (position_mixers.py), whether documents may share a pass, and the `apart_problem` that keeps them from it.
    """

    # transformers' configuration, whose fields differ by family.
    config: Any
    generation_config: Any
    dtype: torch.dtype
    training: bool
    forward: Callable[..., Any]
    # The module below the head, whose parts have other names in each family that reads pictures.
    model: Any
    lm_head: torch.nn.Module
    # PEFT's models alone: the configurations of the adapters by their names.
    peft_config: dict[str, Any]
    served: "Served | None"
    features: PictureVectors | None
    fast_layers: "list[FastLayer]"
    body_and_head: "tuple[Decoder, torch.Tensor]"
    head_scale: float
    keeps_apart: bool
    apart_problem: str

    def __call__(self, **inputs: Any) -> Any:
        """transformers' output object, with `logits` [batch, tokens, vocabulary]."""
        ...

    def eval(self) -> Self: ...

    def train(self, mode: bool = True) -> Self: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]: ...

    def get_submodule(self, target: str) -> torch.nn.Module: ...

    def get_base_model(self) -> "Model":
        """PEFT's models alone: the transformers model with the adapter's layers."""
        ...

    def get_decoder(self) -> "Decoder": ...

    def get_input_embeddings(self) -> torch.nn.Embedding: ...

    def get_output_embeddings(self) -> torch.nn.Linear | None: ...

    def set_attn_implementation(self, attn_implementation: str | dict[str, str]) -> None: ...

    def save_pretrained(self, save_directory: Any, **options: Any) -> Any: ...

    def merge_and_unload(self, *, safe_merge: bool = False) -> "Model":
        """PEFT's models alone: the transformers model with the adapter in its weights."""
        ...


class Decoder(Protocol):
    """The decoder below a head, in the families of `fast_layers`."""

    layers: "Sequence[DecoderLayer]"
    embed_tokens: torch.nn.Embedding
    norm: torch.nn.Module
    rotary_emb: Any

    def __call__(self, **inputs: Any) -> Any: ...

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]: ...


class SelfAttention(Protocol):
    """The projections are linear layers, adapted or not. `head_dim`: the size of a head."""

    config: Any
    layer_idx: int
    head_dim: int
    scaling: float
    q_proj: torch.nn.Module
    k_proj: torch.nn.Module
    v_proj: torch.nn.Module
    o_proj: torch.nn.Module


class Mlp(Protocol):
    """The gated layers. `act_fn`: the activation of the gate."""

    act_fn: torch.nn.Module
    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module


class DecoderLayer(Protocol):
    """A decoder layer of the families of `fast_layers`."""

    self_attn: SelfAttention
    mlp: Mlp


def base_of(model: Model) -> Model:
    """The transformers model in a PEFT model, or itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_of(base: Model) -> "Decoder":
    """The layers below the head of a language model, whatever else it reads. transformers returns the whole model where
    it finds none, as of Llama 4's text models.
    """
    found = base.get_decoder()
    return base.model if found is cast(Any, base) else found


def linear_of(layer: torch.nn.Module) -> torch.nn.Linear:
    """The frozen linear layer below an adapter, or itself. For layers that are linear."""
    return cast(torch.nn.Linear, layer.get_base_layer() if isinstance(layer, LoraLayer) else layer)


def factors_of(layer: LoraLayer, adapter: str = "default") -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    """A [rank, inputs] and B [outputs, rank] of a linear layer's adapter, which PEFT keeps as linear layers."""
    down, up = (cast(torch.nn.Parameter, part[adapter].weight) for part in (layer.lora_A, layer.lora_B))
    return down, up


def replace_forward(module: object, forward: Callable[..., Any]) -> None:
    """Makes a module compute `forward` instead of what its class does."""
    vars(module)["forward"] = forward


def restore_forward(module: object) -> Callable[..., Any] | None:
    """Makes a module compute what its class does. Returns what had replaced that, if anything."""
    return vars(module).pop("forward", None)
