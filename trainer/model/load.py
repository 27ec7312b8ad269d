"""Loads the base model and sets up what is trained: an adapter on it, or all its weights."""

import os
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from trainer.data.sight import is_vision, sight_of
from trainer.data.tokenizer import Tokenizer
from trainer.model import (
    attention,
    experts,
    fast_layers,
    fast_lora,
    fast_parts,
    gpu,
    position_mixers,
    projector,
    quantized,
    served,
    sharded,
    vision,
)
from trainer.model.model import Model, base_of, decoder_of
from trainer.runtime import process_memory
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import Lora, ModelSpec, Spec, Start


def device_and_dtype() -> tuple[torch.device, torch.dtype]:
    """The device to train on and the precision of the base. The adapter is always float32.

    Hardware with bf16 instructions multiplies at least twice as fast in bf16; other hardware would emulate it.
    """
    if torch.cuda.is_available():
        has = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), torch.bfloat16 if has else torch.float32
    capable = torch.cpu.get_capabilities()
    return torch.device("cpu"), torch.bfloat16 if any(
        capable.get(name) for name in BF16_CAPABILITIES
    ) else torch.float32


# Names in torch: x86 with AVX-512 or AMX, ARM.
BF16_CAPABILITIES = ("avx512_bf16", "amx_bf16", "bf16")


def load_config(spec: ModelSpec) -> Any:
    """transformers' configuration of the base. Raises JobError("base_missing")."""
    return AutoConfig.from_pretrained(_base_path(spec), local_files_only=True, trust_remote_code=False)


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """The base's tokenizer, with what the trainer adds to it: `parse_control_tokens`, and `sight`, how the base sees
    pictures (trainer/data/sight.py), or None. Raises JobError("base_missing") if it is missing or has no chat template.
    """
    path = _base_path(spec)
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = spec.parse_control_tokens
    if not tokenizer.chat_template:
        raise JobError(
            "base_missing",
            f"The base model {spec.base.id} has no chat template, so conversations cannot be rendered for it.",
        )
    tokenizer.sight = sight_of(load_config(spec), path, tokenizer)
    return tokenizer


def load_model(spec: Spec, device: torch.device, dtype: torch.dtype) -> Model:
    """The base, set up for the run's method. Trainable weights are float32; everything depends only on the seed.

    lora: the base frozen in `dtype`, with an adapter, fresh or from an earlier run. qlora: the same, with the base's
    linear layers in 4 bits. full: every weight is trained in float32, with an earlier run's adapter merged first, and
    products are computed in `dtype`. The part of a base that sees pictures stays as it is, in every method, but for the
    projector of a job that names it.
    """
    base = load_base(spec, torch.device("cpu") if spec.sharded else device, dtype)
    torch.manual_seed(spec.training.seed)
    if spec.method == "full":
        model = with_start_merged(base, spec).train()
        model.served = served.Served(spec, model, device, dtype)
        return autocast(model, device, dtype)
    model = with_adapter(base, spec)
    if device.type == "cpu" and not spec.sharded and (spec.method == "qlora" or hasattr(model, "fast_layers")):
        _release_checkpoint(model)
    if spec.sharded:
        gpu.make_deterministic(model, device, strict=False)
        sharded.shard(model, device)
    return model


def autocast(model: Model, device: torch.device, dtype: torch.dtype) -> Model:
    """Makes the model compute in bf16, if that is `dtype`, with weights that stay float32 (Micikevicius et al., "Mixed
    Precision Training", arXiv 1710.03740).
    """
    if dtype == torch.bfloat16:
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
    return model


def class_for(config: Any) -> Any:
    """What loads a base with this configuration. Some that also read pictures have no class for text alone."""
    reads_text_alone = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not is_vision(config)
    return AutoModelForCausalLM if reads_text_alone else AutoModelForImageTextToText


def keep_to_text(config: LoraConfig, base: Model) -> None:
    """Leaves towers and projectors out of the layers that an adapter of this configuration changes."""
    if is_vision(base.config):
        vision.restrict(config, base)
    else:
        vision.leave_out_all_but_text(config, base)


def load_base(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Model:
    """The base in the precision of the method."""
    path, config = _base_path(spec), load_config(spec)
    sees = is_vision(config)
    kind = class_for(config)
    wraps = kind is AutoModelForImageTextToText
    options = {
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": True,
        # The tower's attention is not causal.
        "attn_implementation": {"": "sdpa", "text_config": attention.NAME} if wraps else attention.NAME,
    }
    if spec.method == "qlora":
        skipped = (*(vision.PARTS if sees else ()), *_short_layers(kind, config))
        options |= {
            "quantization_config": quantized.quantization_config(dtype, skipped),
            "device_map": {"": device},
        }
    loaded: Any = kind.from_pretrained(path, dtype=torch.float32 if spec.method == "full" else dtype, **options)
    base: Model = loaded.to(device)
    base.config.get_text_config().use_cache = False
    if sees:
        vision.freeze(base, spec)
    elif wraps:
        _freeze_all_but_text(base)
    gpu.make_deterministic(base, device)
    quantized.keep_differentiable(base)
    position_mixers.keep_apart(base)
    return base


def _short_layers(kind: Any, config: Any) -> list[str]:
    """Linear layers whose rows are shorter than a block of weights that are quantized together, by their parents' and
    their own names. They are small, and some models change or read their weights themselves, as Gemma 3n's AltUp.
    """
    with torch.device("meta"):
        empty = kind.from_config(config)
    short = (
        name
        for name, module in empty.named_modules()
        if type(module) is torch.nn.Linear and module.in_features < quantized.BLOCK
    )
    return sorted({".".join(name.split(".")[-2:]) for name in short})


def _freeze_all_but_text(base: Model) -> None:
    """Leaves the language model to be trained, of a base whose other parts the trainer does not use."""
    decoder = cast(torch.nn.Module, decoder_of(base))
    text = {
        id(parameter) for part in (decoder, base.get_output_embeddings()) if part for parameter in part.parameters()
    }
    for parameter in base.parameters():
        # Quantized weights are whole numbers.
        parameter.requires_grad_(id(parameter) in text and parameter.is_floating_point())


def with_adapter(base: Model, spec: ModelSpec) -> Model:
    """The base, frozen, with a fresh adapter or that of `spec.start`. Raises JobError("adapter_invalid") if the base
    has no experts and some are to be adapted, and "base_missing" if the adapter to start from is missing or changed.
    """
    assert spec.lora, "the spec of an adapter has its shape"
    config = lora_config(spec.lora)
    if spec.lora.experts:
        config.target_parameters = experts.target_parameters(base)
        if not config.target_parameters:
            raise JobError(
                "adapter_invalid", f"{spec.base.id} has no experts that an adapter can change. Leave out `experts`."
            )
    keep_to_text(config, base)
    if spec.projector:
        config.modules_to_save = [projector.path_of(base)]
    embeddings = base.get_input_embeddings().weight
    as_served = served.Served(spec, base, embeddings.device, embeddings.dtype)
    with experts.named_as_given():
        model = cast(Model, get_peft_model(cast(torch.nn.Module, base), config))
        if spec.start and (unknown := set_peft_model_state_dict(model, adapter_weights(spec.start)).unexpected_keys):
            raise JobError("internal", f"The adapter to start from has weights that this job does not: {unknown[0]}.")
    # The adapter's folder names the base by its public id, not by this machine's path.
    model.peft_config["default"].base_model_name_or_path = spec.base.id
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.served = as_served
    if spec.sharded:
        # The trainer's own layers keep weights, which are gathered only while their layer computes.
        as_served.is_exact = True
        return model.train()
    if not (position_mixers.keeps_apart(model) and fast_layers.install(model)):
        fast_lora.install(model, fast_parts.install(model))
    experts.install(model)
    return model.train()


def adapter_weights(start: Start) -> dict[str, torch.Tensor]:
    """The weights of the adapter to start from by PEFT's names, A [rank, inputs] and B [outputs, rank]. Raises
    JobError("base_missing") if it is missing or changed.
    """
    file = Path(start.path) / "adapter_model.safetensors"
    if not file.exists() or sha256_of(file) != start.sha256:
        raise JobError("base_missing", "The model that this job starts from is missing or has changed.")
    return load_file(file)


def with_start_merged(base: Model, spec: ModelSpec) -> Model:
    """The base, with the start adapter merged into its weights."""
    if not spec.start:
        return base
    adapter_weights(spec.start)
    with experts.named_as_written():
        model: Model = PeftModel.from_pretrained(cast(torch.nn.Module, base), spec.start.path).merge_and_unload()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    if is_vision(model.config):
        vision.freeze(model, spec)
    return model


def lora_config(lora: Lora) -> LoraConfig:
    """LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021 (arXiv 2106.09685)."""
    return LoraConfig(
        r=lora.r,
        # PEFT takes any number.
        lora_alpha=cast(int, lora.alpha),
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        bias="none",
        task_type="CAUSAL_LM",
    )


@torch.no_grad()
def zero_adapter(model: Model) -> None:
    """Zeroes the adapter's B matrices and restores its projector, so that the model computes what its base does. The
    adapter is lost unless it was saved.
    """
    for name, parameter in trainable(model).items():
        if "lora_B" in name:
            parameter.zero_()
    base = base_of(model)
    if base.config.model_type in projector.PATHS:
        projector.restore(base)


def trainable(model: Model) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by their names in the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _release_checkpoint(model: Model) -> None:
    """Gives the weights that still lie in the mapped checkpoint memory of their own. All others were copied, and the
    whole file would stay resident for these.
    """
    mapped = process_memory.mapped_files(".safetensors")
    for parameter in model.parameters():
        if any(parameter.data_ptr() in addresses for addresses in mapped):
            parameter.data = parameter.data.clone()
    process_memory.return_freed()


def _base_path(spec: ModelSpec) -> Path:
    path = Path(spec.base.path)
    if not (path / "config.json").exists():
        raise JobError("base_missing", f"The base model {spec.base.id} is not at {path}.")
    return path
