"""Adapters of other programs: what they become computes what PEFT computes with their folder and the base."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trainer.cli.import_adapter import import_adapter
from trainer.run import foreign_adapter
from trainer.runtime.errors import JobError
from trainer.runtime.files import sha256_of
from trainer.runtime.spec import read_import_spec
from trainer.tests.conftest import CONVERTERS, Recorder
from trainer.tests.make_tiny import make_tiny

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = torch.arange(40)[None] % 37


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def base(request, tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp(request.param), family=request.param, vocab_size=512)


# What an adapter's files say is read alike for each family.
ONE_FAMILY = pytest.mark.parametrize(
    "base", ["Llama", pytest.param("Qwen2", marks=pytest.mark.full)], indirect=True, scope="module"
)


def load(folder) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits[0]


TRAINED: dict[str, tuple[Path, torch.Tensor]] = {}


def train(base, folder, **options):
    """Writes an adapter after some steps: what has the same options is trained once. Returns the logits of the model
    that was trained.
    """
    key = json.dumps([str(base), options])
    if key not in TRAINED:
        kept = base.parent / f"adapter-{len(TRAINED)}"
        TRAINED[key] = kept, train_anew(base, kept, **options)
    kept, result = TRAINED[key]
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    return result


def train_anew(base, folder, initial: bool = False, save: dict | None = None, **config):
    """`save`: options of `save_pretrained`."""
    torch.manual_seed(3)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM", **config}
    model = get_peft_model(load(base), LoraConfig(**settings))
    if initial:
        model.peft_config["default"].init_lora_weights = True
        model.save_pretrained(folder / foreign_adapter.INITIAL)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.02)
    for _ in range(6):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder, **(save or {}))
    return logits(model)


def change_weights(folder, change) -> None:
    weights = load_file(folder / foreign_adapter.WEIGHTS)
    change(weights)
    save_file(weights, folder / foreign_adapter.WEIGHTS)


def change(folder, **fields) -> None:
    file = folder / foreign_adapter.CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def imported(base, folder) -> tuple[str, torch.Tensor]:
    """Whether the adapter became a plain one or a whole model, and its logits as PEFT and transformers compute them."""
    reading = foreign_adapter.read(load(base), folder)
    pairs = reading.pairs(LINEAR)
    if pairs is None:
        foreign_adapter.merge(reading).save_pretrained(folder / "merged")
        return "merged", logits(load(folder / "merged"))
    lora, _ = foreign_adapter.write_plain(pairs, foreign_adapter.read_config(folder), folder / "plain")
    assert foreign_adapter.is_plain(folder / "plain", LINEAR)
    model = PeftModel.from_pretrained(load(base), folder / "plain")
    assert lora.r == model.peft_config["default"].r
    return f"plain {lora.r}", logits(model)


KINDS = {
    "rslora": ({"use_rslora": True}, "plain 4"),
    "patterns": ({"rank_pattern": {"up_proj": 6}, "alpha_pattern": {"layers.0.self_attn.q_proj": 3}}, "plain 6"),
    "rslora with patterns": ({"use_rslora": True, "rank_pattern": {"q_proj": 2}, "lora_alpha": 2.5}, "plain 4"),
    "some layers": ({"layers_to_transform": [1], "use_rslora": True}, "plain 4"),
    "a pattern of modules": ({"target_modules": r".*\.1\..*(q|v)_proj", "use_rslora": True}, "plain 4"),
    "pissa": ({"init_lora_weights": "pissa"}, "plain 8"),
    "pissa with rslora": ({"init_lora_weights": "pissa", "use_rslora": True}, "plain 8"),
    "olora": ({"init_lora_weights": "olora", "target_modules": "all-linear"}, "plain 8"),
    "pissa of a large rank": ({"init_lora_weights": "pissa", "r": 48}, "plain 96"),
    "mica": ({"init_lora_weights": "mica", "use_rslora": True}, "plain 4"),
    "dora": ({"use_dora": True}, "merged"),
    "a head": ({"modules_to_save": ["lm_head"]}, "merged"),
    "norms": ({"modules_to_save": ["input_layernorm"]}, "merged"),
    "tokens": ({"trainable_token_indices": [1, 5, 30]}, "merged"),
    "embeddings": ({"target_modules": ["q_proj", "embed_tokens"]}, "merged"),
    "the head": ({"target_modules": ["q_proj", "lm_head"]}, "merged"),
    "dora of pissa": ({"use_dora": True, "init_lora_weights": "pissa"}, "merged"),
}
# The first are two of the others at once. What a family has of its own, as biases and a tied head, is in what is
# merged.
TOGETHER = ("rslora with patterns", "pissa with rslora", "dora of pissa")
QUICK = {"Llama": [kind for kind in KINDS if kind not in TOGETHER], "Qwen2": ["dora", "the head"]}


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        pytest.param(family, kind, marks=() if kind in QUICK[family] else pytest.mark.full)
        for kind in KINDS
        for family in ("Llama", "Qwen2")
    ],
    indirect=["base"],
    scope="module",
)
def test_an_adapter_becomes_what_peft_reads(base, tmp_path, kind):
    config, expected = KINDS[kind]
    trained = train(base, tmp_path, **config)
    assert not foreign_adapter.is_plain(tmp_path, LINEAR)
    read = logits(PeftModel.from_pretrained(load(base), tmp_path))
    torch.testing.assert_close(read, trained, atol=2e-4, rtol=1e-4)
    assert (read - logits(load(base))).abs().max() > 0.1
    became, result = imported(base, tmp_path)
    assert became == expected
    torch.testing.assert_close(result, read, atol=2e-4, rtol=1e-4)


EMBEDDINGS, HEAD = "base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_embeddings_that_are_the_bases_own_are_left_out(base, tmp_path, precision):
    """PEFT saves them with `save_embedding_layers=True`."""
    trained = train(base, tmp_path, save={"save_embedding_layers": True})
    names = [EMBEDDINGS, HEAD]

    def round_to_precision(weights):
        assert set(names) <= weights.keys()
        weights |= {name: weights[name].to(precision) for name in names}

    change_weights(tmp_path, round_to_precision)
    became, result = imported(base, tmp_path)
    assert became == "plain 4"
    torch.testing.assert_close(result, trained, atol=2e-4, rtol=1e-4)


def test_embeddings_of_the_adapters_own_are_merged(base, tmp_path):
    train(base, tmp_path, save={"save_embedding_layers": True})

    def shift(weights):
        moved = weights[EMBEDDINGS] + 0.1 * torch.randn_like(weights[EMBEDDINGS])
        weights |= {EMBEDDINGS: moved, HEAD: moved.clone()}

    change_weights(tmp_path, shift)
    read = logits(PeftModel.from_pretrained(load(base), tmp_path))
    became, result = imported(base, tmp_path)
    assert became == "merged"
    torch.testing.assert_close(result, read, atol=2e-4, rtol=1e-4)


@ONE_FAMILY
@pytest.mark.parametrize(
    ("change_embeddings", "reason"),
    [
        (lambda weights: {EMBEDDINGS: weights + 1}, "one weight for both"),
        (
            lambda weights: {EMBEDDINGS: torch.cat([weights, weights[:8]])},
            "520 tokens, and the base's vocabulary has 512",
        ),
    ],
    ids=["another than the head", "of a larger vocabulary"],
)
def test_embeddings_that_the_base_cannot_have_are_refused(base, tmp_path, change_embeddings, reason):
    train(base, tmp_path, save={"save_embedding_layers": True})
    change_weights(tmp_path, lambda weights: weights.update(change_embeddings(weights[EMBEDDINGS])))
    with pytest.raises(JobError, match=reason):
        foreign_adapter.read(load(base), tmp_path)


@ONE_FAMILY
@pytest.mark.parametrize("start", [True, "gaussian", "eva", "orthogonal"])
def test_an_adapter_whose_beginning_leaves_its_base_alone_is_plain(base, tmp_path, start):
    train(base, tmp_path, init_lora_weights=start if start != "eva" else True)
    change(tmp_path, init_lora_weights=start)
    assert foreign_adapter.is_plain(tmp_path, LINEAR)


@ONE_FAMILY
def test_empty_values_and_nulls_are_no_options(base, tmp_path):
    train(base, tmp_path)
    change(
        tmp_path,
        modules_to_save=[],
        trainable_token_indices={},
        use_dora=None,
        rank_pattern=None,
        alpha_pattern={},
        layer_replication=[],
        target_parameters=None,
        bias="none",
        a_later_option=None,
        another_number=16,
    )
    assert foreign_adapter.is_plain(tmp_path, LINEAR)


@pytest.mark.parametrize("start", ["corda", "lora_ga", "loftq", "pissa"])
def test_an_initial_adapter_is_taken_out_exactly(base, tmp_path, start):
    # PiSSA stands for all of them: what was taken out of the base is in the initial adapter.
    trained = train(base, tmp_path, init_lora_weights="pissa", initial=True)
    change(tmp_path, init_lora_weights=start)
    assert not foreign_adapter.is_plain(tmp_path, LINEAR)
    became, result = imported(base, tmp_path)
    assert became == "plain 8"
    torch.testing.assert_close(result, trained, atol=2e-4, rtol=1e-4)


REFUSED = {
    "corda": ({"init_lora_weights": "corda"}, "path_initial_model_for_weight_conversion"),
    "lora_ga": ({"init_lora_weights": "lora_ga"}, "path_initial_model_for_weight_conversion"),
    "loftq": ({"init_lora_weights": "loftq"}, "path_initial_model_for_weight_conversion"),
    "a new beginning": ({"init_lora_weights": "quilora"}, "'quilora' is not known"),
    "invocation tokens": ({"alora_invocation_tokens": [1]}, "'alora_invocation_tokens'"),
    "a new flag": ({"use_newlora": True}, "'use_newlora'"),
    "new settings": ({"new_config": {"a": 1}}, "'new_config'"),
    "layers": ({"layer_replication": [[0, 1]]}, "'layer_replication'"),
    "code": ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "'megatron_config'"),
}


@ONE_FAMILY
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_told_is_refused_with_the_reason(base, tmp_path, kind):
    fields, reason = REFUSED[kind]
    train(base, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(JobError, match=reason):
        foreign_adapter.is_plain(tmp_path, LINEAR)


@ONE_FAMILY
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"modules_to_save": ["lm_head"]}, "do not fit"),
        ({"r": 5, "use_rslora": True}, "do not fit"),
        ({"target_modules": ["q_proj"], "use_rslora": True}, "does not name"),
        ({"target_modules": ["none_such"], "use_rslora": True}, "cannot read"),
    ],
)
def test_a_configuration_of_other_weights_is_refused(base, tmp_path, fields, reason):
    train(base, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(JobError, match=reason):
        foreign_adapter.read(load(base), tmp_path)


@ONE_FAMILY
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"target_modules": "(", "use_rslora": True}, "no regular expression"),
        ({"exclude_modules": "(", "use_rslora": True}, "no regular expression"),
        ({"modules_to_save": ["("]}, "no regular expression"),
        ({"rank_pattern": {"*": 4}}, "no regular expression"),
        ({"alpha_pattern": {"(": 4}}, "no regular expression"),
        ({"rank_pattern": ["q_proj"]}, "'rank_pattern' must be"),
        ({"rank_pattern": {"q_proj": 2**40}}, "'rank_pattern' must be"),
        ({"alpha_pattern": {"q_proj": "8"}}, "'alpha_pattern' must be"),
        ({"modules_to_save": "lm_head"}, "'modules_to_save' must be"),
        ({"trainable_token_indices": [10**6]}, "'trainable_token_indices' must be"),
        ({"trainable_token_indices": {"embed_tokens": [-1]}}, "'trainable_token_indices' must be"),
    ],
)
def test_a_malformed_configuration_is_refused(base, tmp_path, fields, reason):
    train(base, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(JobError, match=reason):
        foreign_adapter.read(load(base), tmp_path)


@ONE_FAMILY
@pytest.mark.parametrize(
    "fields",
    [
        {"rank_pattern": {r"(\w+\.?)+!": 4}},
        {"alpha_pattern": {r"(\w+\.?)+!": 4}},
        {"target_modules": r"(\w+\.?)+!", "use_rslora": True},
        {"exclude_modules": r"(\w+\.?)+!", "use_rslora": True},
    ],
)
def test_patterns_that_take_exponential_time_are_refused_soon(base, tmp_path, fields, monkeypatch):
    monkeypatch.setattr(foreign_adapter, "MATCHING_SECONDS", 0.1)
    train(base, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(JobError, match=r"takes more than 0\.1 s"):
        foreign_adapter.read(load(base), tmp_path)


def test_a_beginning_with_random_numbers_is_told_from_one_that_repeats(base, tmp_path):
    for start, repeats in (("pissa_niter_2", False), ("pissa", True)):
        folder = tmp_path / start
        train(base, folder, init_lora_weights=start)
        assert foreign_adapter.is_random(folder) is not repeats
        readings = [foreign_adapter.read(load(base), folder, seed) for seed in (0, 1)]
        assert foreign_adapter.is_repeatable(*readings) is repeats


@pytest.mark.parametrize(
    ("kind", "config"), [("adapter", {"init_lora_weights": "olora"}), ("model", {"use_dora": True})]
)
def test_an_import_scores_pefts_reading(known_tokens, tiny, tmp_path, kind, config):
    given = tmp_path / "given"
    train(tiny, given, **config)
    spec = {
        "base": {"id": "test/tiny", "path": str(tiny)},
        "start": {"path": str(given), "sha256": sha256_of(given / foreign_adapter.WEIGHTS)},
        "lora": {"r": 4, "alpha": 8, "target_modules": ["q_proj", "up_proj"]},
        "linear_modules": LINEAR,
        "threads": 1,
        "converters": str(CONVERTERS),
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    protocol = Recorder()
    assert import_adapter(read_import_spec(tmp_path), tmp_path, protocol)
    (result,) = protocol.of("result")
    assert result["kind"] == kind
    rows = json.loads((tmp_path / "out" / "probe.json").read_text())["rows"]
    assert any(abs(a - b) > 0.01 for row in rows for a, b in zip(row["tuned"], row["origin"], strict=True))


def test_balanced_factors_keep_the_product_and_nothing_that_cancels():
    torch.manual_seed(0)
    a, b = 100 * torch.randn(6, 40), 100 * torch.randn(30, 6)
    a[3:], b[:, 3:] = a[:3] + 0.001, -b[:, :3]
    new_a, new_b = foreign_adapter.balanced(a, b)
    assert (new_a.shape, new_b.shape) == (a.shape, b.shape)
    torch.testing.assert_close(new_b @ new_a, (b.double() @ a.double()).float(), atol=1e-3, rtol=1e-4)
    assert max(new_a.abs().max(), new_b.abs().max()) < 10
