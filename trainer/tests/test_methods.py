"""QLoRA and full training: exact gradients with packing, and their kinds of results."""

import pytest
import torch

from trainer.data.layout import layout_of
from trainer.model import fast_layers, fast_lora
from trainer.model.load import load_tokenizer
from trainer.run.artifact import save
from trainer.runtime.files import sha256_of
from trainer.runtime.gguf_reader import GgufReader
from trainer.runtime.spec import read_spec
from trainer.tests.conftest import DEVICE
from trainer.tests.test_packing import gradients


def test_qlora_has_pefts_gradients(job, loop_of, monkeypatch):
    fast = loop_of(job("fast", method="qlora"))
    loss, found = gradients(fast, fast.data.rows[:8])
    monkeypatch.setattr(fast_layers, "install", lambda model: False)
    monkeypatch.setattr(fast_lora, "install", lambda *_: 0)
    plain = loop_of(job("plain", method="qlora"))
    assert any(type(module).__name__ == "Linear4bit" for module in plain.model.modules())
    expected_loss, expected = gradients(plain, plain.data.rows[:8])
    assert loss == pytest.approx(expected_loss, abs=1e-4)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3)


def test_an_adapter_of_the_head_is_trained(job, loop_of):
    loop = loop_of(job(lora={"target_modules": ["q_proj", "lm_head"]}))
    loop.gradients(loop.data.rows[:4])
    (up,) = (parameter for name, parameter in loop.parameters.items() if "lm_head.lora_B" in name)
    assert up.grad is not None and up.grad.any()


def test_a_quantized_base_has_the_same_gradients_after_an_evaluation(job, loop_of):
    loop = loop_of(job(method="qlora", lora={"dropout": 1e-12}), precision="bfloat16")
    _, before = gradients(loop, loop.data.rows[:4])
    before = {name: gradient.clone() for name, gradient in before.items()}
    loop.optimizer.zero_grad()
    with torch.no_grad():
        loop.model.eval()(
            input_ids=torch.tensor([[1, 2, 3]], device=loop.device), layout=layout_of([0], [3], loop.device)
        )
    _, after = gradients(loop, loop.data.rows[:4])
    for name, gradient in after.items():
        assert torch.equal(gradient, before[name]), name


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU computes in bf16")
def test_full_training_has_the_gradients_of_separate_documents(job, loop_of):
    from transformers import AutoModelForCausalLM

    folder = job(method="full", lora=None)
    loop = loop_of(folder)
    batch = loop.data.rows[:8]
    loss, _ = loop.gradients(batch)
    model = AutoModelForCausalLM.from_pretrained(
        read_spec(folder).base.path, dtype=torch.float32, attn_implementation="eager"
    ).to(DEVICE)
    sequences = [sequence for row in batch for sequence in row.sequences]
    targets, total = sum(sequence.targets for sequence in sequences), 0.0
    for sequence in sequences:
        ids, trained = (
            torch.tensor(sequence.ids[None].astype("int64"), device=DEVICE),
            torch.tensor(sequence.trained, device=DEVICE),
        )
        part = torch.nn.functional.cross_entropy(
            model(input_ids=ids).logits[0, :-1][trained[1:]], ids[0, 1:][trained[1:]], reduction="sum"
        )
        (part / targets).backward()
        total += float(part.detach()) / targets
    assert loss == pytest.approx(total, abs=1e-5)
    expected = dict(model.named_parameters())
    assert loop.parameters.keys() == expected.keys()
    for name, parameter in loop.parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-4)


@pytest.mark.full
def test_full_training_results_in_a_checkpoint_and_a_gguf_file(job, loop_of, convertible):
    folder = job(base={"path": str(convertible)}, method="full", lora=None, training={"epochs": 1})
    loop = loop_of(folder)
    before = {name: parameter.detach().clone() for name, parameter in loop.parameters.items()}
    loop.run()
    spec = read_spec(folder)
    made = save(loop.model, load_tokenizer(spec), spec, folder / "out")
    assert made.kind == "model"
    import gguf
    from transformers import AutoModelForCausalLM

    again = dict(AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32).named_parameters())
    assert all(torch.equal(again[name], parameter.cpu()) for name, parameter in loop.parameters.items())
    assert not torch.equal(
        before["model.layers.0.mlp.up_proj.weight"].cpu(), again["model.layers.0.mlp.up_proj.weight"]
    )
    up = next(tensor for tensor in GgufReader(made.gguf).tensors if tensor.name == "blk.0.ffn_up.weight")
    stored = torch.from_numpy(gguf.dequantize(up.data, up.tensor_type))
    torch.testing.assert_close(stored, again["model.layers.0.mlp.up_proj.weight"].detach(), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "method", ["lora", pytest.param("qlora", marks=pytest.mark.full), pytest.param("full", marks=pytest.mark.full)]
)
def test_a_run_starts_from_an_adapter(job, loop_of, method):
    folder = job("first", training={"epochs": 6, "learning_rate": 0.02})
    first = loop_of(folder)
    first.run()
    made = save(first.model, load_tokenizer(first.spec), first.spec, folder / "out")
    start = {"path": str(made.folder), "sha256": sha256_of(made.folder / "adapter_model.safetensors")}
    second = loop_of(job("second", method=method, start=start, **({"lora": None} if method == "full" else {})))
    batch = first.data.rows[:8]
    learned, fresh = first.gradients(batch)[0], loop_of(job("fresh")).gradients(batch)[0]
    assert learned < fresh - 0.1
    assert second.gradients(batch)[0] == pytest.approx(learned, rel=1e-3 if method != "qlora" else 0.02)
