"""Whether the engine computes what the trainer does, checked when a base is added: after a training it is too late."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from torch.nn.functional import cross_entropy

from trainer.model import experts
from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.model.load import class_for, keep_to_text
from trainer.model.model import Model
from trainer.model.targets import targets_of
from trainer.run.artifact import save_merged
from trainer.run.convert_to_gguf import convert_model
from trainer.run.engine import Engine
from trainer.runtime import process_memory
from trainer.runtime.errors import JobError, described

ROWS, LENGTH = 2, 40
# A share of the weights' own output: the adapter must change what the model says by more than rounding does.
STRENGTH = 0.3
# In nats, beside a share of how far the log-probabilities of random tokens are apart: another model's differ by about
# that much, rounding by a hundredth.
ROUNDING, SHARE = 0.01, 0.25


def check_base(
    base: Path, gguf: Path, targets: dict[str, Any], converters: Path, engine: Engine
) -> dict[str, Any] | None:
    """Compares random rows in transformers and in the engine, without and with a random adapter of what an adapter can
    change (`targets_of`). Where the engine cannot serve that adapter it is merged with the base, and the merged model
    compared. The engine only loads a checkpoint that does not fit into memory.

    Returns None where adapters can be served unmerged, else what those can change that are merged. Raises RuntimeError
    with a reason for the user.
    """
    rows = random_rows(base)
    unmerged = bool(targets["linear_modules"])
    if not _fits(base):
        _engine_scores(engine, gguf, rows)
        return None if unmerged else targets_of(base, converters, merged=True)
    with tempfile.TemporaryDirectory(dir=gguf.parent) as work:
        problem: str | None = "The engine's library applies no adapter to the layers of this model."
        scores, change = None, torch.zeros(())
        model = load(base)
        expected = log_probabilities(model, rows)
        if unmerged:
            adapter, tuned = Path(work) / "adapter.gguf", _with_random_adapter(model, targets)
            change = log_probabilities(tuned, rows) - expected
            problem = _adapter_problem(tuned, base, converters, adapter)
            del model, tuned
            if problem is None:
                try:
                    scores = engine.score(gguf, rows, adapter)
                except RuntimeError as refusal:
                    problem = f"The engine cannot load an adapter of this model: {_ended(refusal)}"
        scores = scores or _engine_scores(engine, gguf, rows)
        spread = float(expected.std())
        apart = (scores["base"] - expected).abs().mean().item()
        # Not the other way round: NaN is no agreement.
        if not apart <= ROUNDING + SHARE * spread:
            raise RuntimeError(
                "The engine does not compute what transformers does: the log-probabilities of random tokens differ by "
                f"{apart:.3f} on average, of a spread of {spread:.3f}. The engine's library does not know this "
                "architecture well enough; it can be served by an upstream that does."
            )
        problem = problem or _disagreement(scores["adapter"] - scores["base"], change)
        if problem is None:
            return None
        merged = targets_of(base, converters, merged=True)
        if why := _merged_problem(base, merged, (rows, expected, scores["base"]), converters, engine, Path(work)):
            raise RuntimeError(f"{problem} Nor can it serve the model with an adapter in its weights: {why}")
        return merged


def _adapter_problem(tuned: Model, base: Path, converters: Path, file: Path) -> str | None:
    """Writes the model's adapter for the engine. Returns why that cannot be done; None if it is."""
    with tempfile.TemporaryDirectory() as folder:
        tuned.save_pretrained(folder)
        experts.describe_to_peft(tuned, Path(folder))
        try:
            write_adapter_gguf(converters, base, Path(folder), file, "f16")
        except Exception as problem:
            return f"An adapter of this model cannot be converted: {_reason(problem)}"
    return None


def _merged_problem(
    base: Path,
    targets: dict[str, Any],
    scored: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    converters: Path,
    engine: Engine,
    work: Path,
) -> str | None:
    """Why the engine does not compute what the base is with an adapter in its weights; None if it does. `scored`: rows,
    and what transformers and the engine say of them without the adapter.
    """
    rows, expected, served = scored
    if not targets["linear_modules"]:
        return "it has no layer that an adapter can change."
    folder, gguf = work / "hf", work / "merged.gguf"
    try:
        tuned = _with_random_adapter(load(base), targets)
        change = log_probabilities(tuned, rows) - expected
        save_merged(tuned, base, folder)
        del tuned
        for file in base.iterdir():
            if file.is_file() and file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, folder / file.name)
        convert_model(converters, folder, gguf)
        return _disagreement(engine.score(gguf, rows)["base"] - served, change)
    except Exception as problem:
        return _reason(problem)


def _disagreement(served: torch.Tensor, change: torch.Tensor) -> str | None:
    """What is wrong with the engine's change of log-probabilities; None if it is the trainer's."""
    size, apart = change.abs().mean().item(), (served - change).abs().mean().item()
    if apart <= ROUNDING + SHARE * size:
        return None
    return (
        f"The engine does not compute an adapter of this model as it is trained: of a change by {size:.3f} nats it "
        f"differs by {apart:.3f}."
    )


def _reason(problem: Exception) -> str:
    return _ended(str(problem) if isinstance(problem, JobError) else described(problem))


def _ended(text: object) -> str:
    return f"{str(text).rstrip('.')}."


def _engine_scores(
    engine: Engine, gguf: Path, rows: torch.Tensor, adapter: Path | None = None
) -> dict[str, torch.Tensor]:
    try:
        return engine.score(gguf, rows, adapter)
    except RuntimeError as problem:
        raise RuntimeError(f"The engine cannot load the converted model: {problem}") from problem


def random_rows(base: Path) -> torch.Tensor:
    """Tokens that are no special ones, [rows, tokens]."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    special = set(tokenizer.added_tokens_decoder)
    plain = torch.tensor([token for token in sorted(tokenizer.get_vocab().values()) if token not in special])
    chosen = torch.randint(len(plain), (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return plain[chosen]


def _fits(base: Path) -> bool:
    """Whether the weights fit into half of the free memory, in float32."""
    bytes_ = 2 * sum(file.stat().st_size for file in base.glob("*.safetensors"))
    return bytes_ < process_memory.available_bytes() / 2


def load(base: Path) -> Model:
    """The model of a checkpoint in float32, by transformers alone."""
    from transformers import AutoConfig

    kind = class_for(AutoConfig.from_pretrained(base, local_files_only=True))
    loaded: Any = kind.from_pretrained(base, dtype=torch.float32, local_files_only=True, use_safetensors=True)
    return cast(Model, loaded.eval())


def _with_random_adapter(model: Model, targets: dict[str, Any]) -> Model:
    config = LoraConfig(
        r=4,
        lora_alpha=4,
        target_modules=targets["linear_modules"],
        target_parameters=experts.target_parameters(model) if "expert_weights" in targets else None,
        bias="none",
        task_type="CAUSAL_LM",
    )
    keep_to_text(config, model)
    torch.manual_seed(0)
    with experts.named_as_given():
        tuned: Any = get_peft_model(cast(torch.nn.Module, model), config)
    for module in tuned.modules():
        if isinstance(module, LoraLayer):
            layer = cast(Any, module)
            weight = layer.get_param() if isinstance(module, ParamWrapper) else layer.get_base_layer().weight
            for name, factor in layer.lora_B.items():
                inputs = layer.lora_A[name].weight.shape[1]
                torch.nn.init.normal_(factor.weight, std=STRENGTH * weight.std().item() * inputs**0.5)
    return cast(Model, tuned.eval())


@torch.inference_mode()
def log_probabilities(model: Model, rows: torch.Tensor) -> torch.Tensor:
    """Those of all tokens but the first, [rows, tokens - 1]. A row at a time, as some layers have a state."""
    scores = []
    for row in rows:
        logits = model(input_ids=row[None], use_cache=False).logits[0, :-1].float()
        scores.append(-cross_entropy(logits, row[1:], reduction="none"))
    return torch.stack(scores)
