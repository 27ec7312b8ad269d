"""A run's memory is predicted before loading, and a run that cannot fit is refused with the numbers."""

import json
from dataclasses import replace

import pytest
import torch

from trainer.data.packing import Limits, pack
from trainer.model.load import load_config, load_tokenizer
from trainer.run import memory, save
from trainer.run.loop import limits_within
from trainer.run.prepare import prepare_run
from trainer.runtime.errors import JobError
from trainer.runtime.spec import Candidate, read_spec
from trainer.tests.conftest import Recorder
from trainer.tests.make_tiny import TOKENIZER
from trainer.tests.test_preferences import PAIRS, lines


def test_a_run_that_cannot_fit_is_refused_before_the_base_is_loaded(job, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 300e6)
    folder, protocol = job(), Recorder()
    with pytest.raises(JobError, match=r"GB of memory, and 0\.3 GB are free") as raised:
        prepare_run(read_spec(folder), folder, protocol)
    assert raised.value.code == "out_of_memory"
    assert raised.value.data["available_mb"] == 300 < raised.value.data["predicted_mb"]
    assert [data["phase"] for data in protocol.of("status")] == ["preparing"]


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda")], ids=str)
def test_longer_rows_and_full_training_need_more_memory(job, device):
    from transformers import AutoConfig

    def predicted(tokens: int, **changes) -> float:
        spec = read_spec(job(f"run-{tokens}-{len(changes)}", **changes))
        return memory.predicted_bytes(
            memory.shape_of(AutoConfig.from_pretrained(spec.base.path)), spec, 4, tokens, tokens // 2, device
        )

    assert predicted(100) < predicted(1000) < predicted(8000) < predicted(8001, method="full", lora=None)


LORA, FULL = {"lora": {"r": 16}}, {"method": "full", "lora": None}


@pytest.mark.parametrize(
    ("changes", "tokens", "targets", "peak"),
    [(LORA, 208, 44, 1749e6), (LORA, 528, 204, 2269e6), (FULL, 146, 44, 2957e6)],
    ids=str,
)
def test_small_runs_need_what_is_predicted(job, changes, tokens, targets, peak):
    """Peaks of SmolLM2-135M in float32 without kernels, in one pass; docs/performance.md has them."""
    from transformers import AutoConfig

    spec = read_spec(job(**changes))
    shape = memory.shape_of(AutoConfig.from_pretrained(TOKENIZER))
    predicted = memory.predicted_bytes(shape, spec, 4, tokens, targets, torch.device("cpu"), passes=1)
    assert predicted == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize(
    ("experts", "tokens", "targets", "peak"),
    [(False, 331, 218, 1760e6), (False, 1324, 872, 2492e6), (True, 1324, 872, 2923e6), (None, 1324, 872, 5315e6)],
    ids=str,
)
def test_runs_of_mixtures_need_what_is_predicted(job, experts, tokens, targets, peak):
    """Peaks of a mixture of 8 experts in bfloat16, in one pass; without `experts` all weights are trained."""
    from transformers import Qwen3MoeConfig

    sizes = {"hidden_size": 768, "moe_intermediate_size": 1024, "num_hidden_layers": 8, "head_dim": 64}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2}
    shape = memory.shape_of(Qwen3MoeConfig(vocab_size=49152, tie_word_embeddings=True, **sizes, **heads))
    changes = FULL if experts is None else {"lora": {"r": 16, "experts": experts}}
    predicted = memory.predicted_bytes(
        shape, read_spec(job(**changes)), 2, tokens, targets, torch.device("cpu"), passes=1
    )
    assert predicted == pytest.approx(peak, rel=0.07)


@pytest.mark.parametrize("name", ["gemma4_e2b", "gemma3n"])
def test_embeddings_of_each_layer_are_counted(tmp_path, name):
    """Half of the weights of Gemma 4 E2B; qlora does not quantize them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.families.checkpoints import write

    write(name, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tables = [weight for key, weight in model.named_parameters() if key.endswith("embed_tokens_per_layer.weight")]
    assert memory.shape_of(config).layer_embeddings == sum(weight.numel() for weight in tables) > 0


def test_the_prompt_of_a_pair_is_counted_once(job, loop_of):
    prompts = [[{"role": "user", "content": f"{index}, " + "why? " * 40}] for index in range(4)]
    pairs = [{**pair, "prompt": prompt} for pair, prompt in zip(PAIRS, prompts, strict=False)]
    loop = loop_of(job("pairs", text=lines(pairs), options={"objective": "dpo"}, training={"batch_size": 4}))
    sequences = [sequence for row in loop.data.rows for sequence in row.sequences]
    tokens, _, passes = memory.largest_pack(loop.data, loop.spec, Limits(), torch.device("cpu"))
    assert passes == 1
    assert tokens == pack(sequences, together=2).ids.numel() < 0.7 * loop.data.tokens


def test_the_result_is_converted_without_the_optimizers_moments(job, loop_of, monkeypatch):
    folder = job()
    loop = loop_of(folder)
    loop.run()
    assert loop.optimizer.state
    convert, states = save.convert, []

    def converting(*arguments):
        states.append(len(loop.optimizer.state))
        return convert(*arguments)

    monkeypatch.setattr(save, "convert", converting)
    save.save_result(loop, load_tokenizer(loop.spec), folder)
    assert states == [0]


def test_passes_on_a_gpu_take_what_the_run_may_and_are_those_of_the_checkpoint(job, tmp_path):
    gpu = torch.device("cuda")
    spec = read_spec(job("first"))
    config = load_config(spec)
    enough = memory.predicted_bytes(memory.shape_of(config), spec, 2, 8192, 8192, gpu) + 1
    assert [limits_within(budget, config, spec, gpu).tokens for budget in (1e12, enough, 0)] == [32768, 8192, 2048]
    (tmp_path / "state.json").write_text(json.dumps({"pass_tokens": 5000}))
    begun = replace(spec, resume_from=[Candidate(str(tmp_path), "", 1)])
    assert limits_within(1e12, config, begun, gpu).tokens == 5000
    assert limits_within(0, config, begun, gpu).tokens == 2048, "they no longer fit"
