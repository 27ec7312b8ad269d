"""A packed batch has the losses and gradients of its documents computed one by one."""

import numpy as np
import pytest
import torch

from trainer.data.dataset import Sequence, prepare
from trainer.data.packing import Limits, pack, padded_size, shared_prefix, split
from trainer.model import fast_layers
from trainer.run import probe
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import DEVICE, Recorder, conversations
from trainer.tests.make_tiny import make_tiny


@pytest.fixture(scope="module")
def sequences(tiny):
    from transformers import AutoTokenizer

    data = prepare(conversations(), AutoTokenizer.from_pretrained(tiny), 2048, Recorder())
    return [sequence for row in data.rows for sequence in row.sequences]


def one_by_one(folder, sequences):
    """Mean loss and gradients by transformers and peft alone: no packing, plain attention, logits everywhere."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    from trainer.model.load import lora_config, trainable

    spec = read_spec(folder)
    base = AutoModelForCausalLM.from_pretrained(spec.base.path, dtype=torch.float32, attn_implementation="eager").to(
        DEVICE
    )
    torch.manual_seed(spec.training.seed)
    model = get_peft_model(base, lora_config(spec.lora))
    shake(model)
    targets, total = sum(sequence.targets for sequence in sequences), 0.0
    for sequence in sequences:
        ids, trained = (
            torch.tensor(sequence.ids[None].astype("int64"), device=DEVICE),
            torch.tensor(sequence.trained, device=DEVICE),
        )
        logits = model(input_ids=ids).logits[0, :-1][trained[1:]]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:][trained[1:]], reduction="sum") / targets
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad for name, parameter in trainable(model).items()}


def shake(model) -> None:
    """Randomizes the adapters: fresh ones do nothing (B is zero), which would hide mistakes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)


def gradients(loop, batch) -> tuple[float, dict]:
    shake(loop.model)
    loss, _ = loop.gradients(batch)
    return loss, {name: parameter.grad for name, parameter in loop.parameters.items()}


def assert_same_gradients(loop, folder, batch) -> None:
    loss, found = gradients(loop, batch)
    expected_loss, expected = one_by_one(folder, [sequence for row in batch for sequence in row.sequences])
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(tokens=150), Limits(documents=1)], ids=["one pack", "small packs", "no packing"]
)
@pytest.mark.parametrize("dropout", [0.0, 1e-12], ids=["fast layers", "peft's adapter"])
def test_packed_gradients_equal_those_of_separate_documents(job, loop_of, limits, dropout):
    folder = job(lora={"dropout": dropout})
    loop = loop_of(folder)
    loop.limits = limits
    assert_same_gradients(loop, job("plain"), loop.data.rows[:8])


@pytest.mark.parametrize(
    ("family", "fast", "config"),
    [
        ("Qwen2", True, {}),
        ("Mistral", True, {"sliding_window": 24}),
        ("Gemma", True, {"head_dim": 16}),
        ("Qwen3", True, {"head_dim": 24}),
        ("Gemma3", True, {"head_dim": 16, "sliding_window": 24}),
        ("SmolLM3", True, {"no_rope_layers": [1, 0]}),
        ("Ministral3", True, {"max_position_embeddings": 65536}),
        ("Phi3", True, {"head_dim": 16, "partial_rotary_factor": 0.75}),
        ("Olmo3", True, {"sliding_window": 24}),
        ("Exaone4", True, {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}),
        ("Granite", True, {"residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 4.0}),
        ("Glm4", True, {"head_dim": 16, "partial_rotary_factor": 0.5}),
        ("Ernie4_5", True, {"head_dim": 16}),
        ("HunYuanDenseV1", False, {"head_dim": 16}),
    ],
)
def test_other_families_have_the_same_gradients_on_every_path(
    job, loop_of, tmp_path, monkeypatch, family, fast, config
):
    base = {"path": str(make_tiny(tmp_path / "base", family=family, vocab_size=2048, **config))}
    installed = []
    install = fast_layers.install
    monkeypatch.setattr(fast_layers, "install", lambda model: installed.append(install(model)) or installed[-1])
    folder = job(base=base)
    loop = loop_of(folder)
    assert installed == [fast]
    assert_same_gradients(loop, folder, loop.data.rows[:8])


@pytest.mark.parametrize(
    "modules", ["all-linear", ["q_proj", "v_proj", "down_proj"]], ids=["all modules", "some modules"]
)
@pytest.mark.parametrize("fast", [True, False], ids=["fast layers", "fast adapters"])
def test_adapters_on_some_modules_have_the_same_gradients(job, loop_of, monkeypatch, modules, fast):
    if not fast:
        monkeypatch.setattr(fast_layers, "install", lambda model: False)
    folder = job(lora={"target_modules": modules})
    loop = loop_of(folder)
    assert_same_gradients(loop, folder, loop.data.rows[:8])


def test_gradients_in_bf16_point_the_same_way(job, loop_of):
    loop = loop_of(job(), precision="bfloat16")
    loss, found = gradients(loop, loop.data.rows[:8])
    exact = loop_of(job("exact"))
    expected_loss, expected = gradients(exact, exact.data.rows[:8])
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.999, name


def test_a_document_does_not_see_its_neighbours(job, loop_of, sequences):
    model = loop_of(job()).model.eval()

    def logits(group):
        packed = pack(group, next(model.parameters()).device)
        where = {"layout": packed.layout, "logits_to_keep": packed.chosen}
        with torch.no_grad():
            return model(input_ids=packed.ids, position_ids=packed.positions, **where).logits[0][
                -sequences[1].targets :
            ]

    torch.testing.assert_close(
        logits([sequences[0], sequences[1]]), logits([sequences[4], sequences[2], sequences[1]]), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("limits", [Limits(), Limits(documents=2)])
def test_the_probe_scores_rows_together_as_alone(job, loop_of, monkeypatch, limits):
    loop = loop_of(job())
    shake(loop.model)
    examples = loop.data.examples
    monkeypatch.setattr(probe, "PASS", limits)
    together = probe.log_probabilities(loop.model, examples, loop.device)
    alone = [probe.log_probabilities(loop.model, [example], loop.device)[0] for example in examples]
    assert [len(row) for row in together] == [probe.shortened(example).targets for example in examples]
    for row, expected in zip(together, alone, strict=True):
        assert row == pytest.approx(expected, abs=2e-4)


def test_the_shared_prefix_is_packed_once(sequences):
    first, second = sequences[0], sequences[1]
    packed = pack([first, second])
    assert packed.shared == shared_prefix([first, second]) > 20
    assert packed.ids.shape[1] == len(first.ids) + len(second.ids) - packed.shared
    assert packed.next_ids.tolist() == first.ids[first.trained].tolist() + second.ids[second.trained].tolist()


def test_identical_prompts_share_no_learned_tokens(sequences):
    twins = [sequences[0], sequences[0]]
    packed = pack(twins)
    assert len(packed.chosen) == 2 * sequences[0].targets
    assert len(set(packed.chosen.tolist())) == len(packed.chosen)


def test_padded_sizes_are_few_with_little_padding():
    sizes = {padded_size(tokens) for tokens in range(1, 32769)}
    assert len(sizes) <= 24
    for tokens in range(2048, 32769):
        assert tokens <= padded_size(tokens) < tokens * 5 / 4


def test_groups_keep_every_sequence_in_order_and_within_limits(sequences):
    groups = split(sequences, Limits(tokens=200, targets=30))
    assert [sequence for group in groups for sequence in group] == sequences
    assert all(len(group) == 1 or sum(len(sequence.ids) for sequence in group) <= 200 for group in groups)


def text(prompt: list[int], answer: list[int], vectors: list[int] | None = None) -> Sequence:
    """A prompt and its learned answer; `vectors`: the numbers of a picture's, by token."""
    trained = np.array([False] * len(prompt) + [True] * len(answer))
    return Sequence(
        np.array([*prompt, *answer], dtype=np.int32), trained, None if vectors is None else np.array(vectors)
    )


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (Limits(tokens=8), [2, 2]),
        (Limits(tokens=7), [1, 1, 1, 1]),
        (Limits(tokens=1), [1, 1, 1, 1]),
        (Limits(targets=3), [3, 1]),
        (Limits(targets=2), [2, 2]),
        (Limits(documents=3), [3, 1]),
        (Limits(), [4]),
    ],
)
def test_a_group_takes_as_many_as_its_limits_allow(limits, sizes):
    parts = [text([1, 2, number], [5]) for number in range(4)]
    groups = split(parts, limits)
    assert [len(group) for group in groups] == sizes
    assert [part for group in groups for part in group] == parts
    assert split([], limits) == []


def test_a_pass_is_padded_to_the_next_of_its_sizes():
    sizes = {1: 256, 256: 256, 257: 512, 2048: 2048, 2049: 2560, 4096: 4096, 4097: 5120, 8192: 8192, 8193: 10240}
    assert {tokens: padded_size(tokens) for tokens in sizes} == sizes


def test_a_shared_prefix_ends_where_texts_differ_and_before_what_predicts_an_answer():
    assert shared_prefix([]) == shared_prefix([text([1, 2, 3], [4])]) == 0
    assert shared_prefix([text([1, 2, 3, 7], [4]), text([1, 2, 8, 7], [4])]) == 2
    # The last token of a prompt predicts the answer's first.
    assert shared_prefix([text([1, 2, 3], [4]), text([1, 2, 3], [5])]) == 2
    assert shared_prefix([text([1, 2, 3], [4]), text([1, 2, 3, 6], [5]), text([1, 9], [4])]) == 1
    assert shared_prefix([text([1, 2], [3]), text([1, 2, 3, 9], [4])]) == 1
    assert shared_prefix([text([], [4, 5]), text([4, 2, 3], [4])]) == 0
    assert shared_prefix([text([9, 2], [4]), text([1, 2], [4])]) == 0
    # Pictures have the same tokens and other vectors.
    one, other = text([1, 8, 8, 2], [4], [-1, 0, 1, -1, -1]), text([1, 8, 8, 2], [4], [-1, 0, 2, -1, -1])
    assert shared_prefix([one, one]) == 3
    assert shared_prefix([one, other]) == 2


def test_answers_to_one_prompt_are_packed_behind_it():
    sequences = [text([1, 2, 3], [4]), text([1, 2, 3], [5, 6]), text([7, 8, 9], [4]), text([7, 8, 9], [5])]
    packed = pack(sequences, together=2)
    assert packed.shared == 4
    assert packed.ids.tolist() == [[1, 2, 7, 8, 3, 4, 3, 5, 6, 9, 4, 9, 5]]
    assert packed.positions.tolist() == [[0, 1, 0, 1, 2, 3, 2, 3, 4, 2, 3, 2, 3]]
    assert packed.chosen.tolist() == [4, 6, 7, 9, 11]
    assert packed.next_ids.tolist() == [4, 5, 6, 4, 5]
    assert packed.places is None and packed.vectors is None
    assert pack(sequences).shared == 0


def pairs(*prompts: list[int]) -> list[Sequence]:
    return [text(prompt, [answer]) for prompt in prompts for answer in (50, 51)]


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        # One prefix of all saves more than one of each pair, or as much.
        (([1, 2, 3, 4], [1, 2, 3, 4]), 3),
        (([1, 2, 3, 4], [1, 2, 5, 6]), 2),
        (([1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]), 2),
        # One of each pair saves more.
        (([1, 2, 3], [1, 7, 8]), 4),
        (([1, 2, 3], [7, 8, 9]), 4),
    ],
)
def test_prefixes_are_shared_where_that_saves_most(prompts, shared):
    assert pack(pairs(*prompts), together=2).shared == shared
    assert pack(pairs(*prompts), together=2, share=False).shared == 0


def test_vectors_of_pictures_keep_their_places():
    sequences = [text([1, 2, 3], [4]), text([1, 8, 2], [4], [-1, 0, -1, -1])]
    packed = pack(sequences)
    assert packed.shared == 1
    assert packed.ids.tolist() == [[1, 2, 3, 4, 8, 2, 4]]
    assert packed.places is not None and packed.vectors is not None
    assert packed.places.tolist() == [4]
    assert packed.vectors.tolist() == [0]
