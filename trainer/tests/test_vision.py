"""Training with pictures: what the model sees is what transformers shows it, and nothing of a picture is cut."""

import base64
import io
import json
from pathlib import Path

import gguf
import pytest
import torch
from peft import PeftModel, get_peft_model
from PIL import Image
from transformers import AutoConfig, AutoTokenizer

from trainer.data import layout
from trainer.data.dataset import prepare
from trainer.data.packing import Limits, shared_prefix
from trainer.data.pictures import Picture, PictureError, decode, file_of, size_of
from trainer.data.rows import parse_row
from trainer.data.sight import sight_of
from trainer.model import projector, vision
from trainer.model.load import lora_config, trainable
from trainer.model.model import base_of
from trainer.model.quantized import is_quantized
from trainer.model.vision import Features
from trainer.run.artifact import save
from trainer.run.prepare import prepare_run
from trainer.runtime.errors import JobError
from trainer.runtime.spec import read_spec
from trainer.tests import vision_reference
from trainer.tests.conftest import DEVICE, Recorder, pair_row, rated_row
from trainer.tests.make_tiny_vision import make_tiny_vision
from trainer.tests.test_packing import shake

FAMILIES = [
    "smolvlm",
    "qwen2_5_vl",
    pytest.param("qwen3_vl", marks=pytest.mark.full),
    pytest.param("gemma3", marks=pytest.mark.full),
]
# One family shows runs and their results in `npm test`.
RUNS = [FAMILIES[0], pytest.param(FAMILIES[1], marks=pytest.mark.full), *FAMILIES[2:]]
COLOURS = {"red": (220, 30, 30), "green": (20, 160, 60), "blue": (30, 60, 220), "white": (250, 250, 250)}
SIZES = [(64, 64), (150, 70), (60, 200), (40, 33)]


@pytest.fixture(scope="session", params=FAMILIES)
def sighted(request, tmp_path_factory) -> Path:
    """A base of 2,048 tokens and those of its family, whose tokenizer loads in a tenth of the time of a real one."""
    return make_tiny_vision(request.param, tmp_path_factory.mktemp(request.param), vocabulary=2048)


def data_url(image: Image.Image, kind: str = "PNG", **options) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def picture(colour: str, size: tuple[int, int] = (64, 64)) -> dict:
    return {"type": "image_url", "image_url": {"url": data_url(Image.new("RGB", size, COLOURS[colour]))}}


def text(content: str) -> dict:
    return {"type": "text", "text": content}


def rows() -> list[list[dict]]:
    """Questions about one or two pictures, texts before and after them, turns with and without."""
    made = []
    for index, (name, size) in enumerate([(name, size) for name in COLOURS for size in SIZES][:6]):
        shown = [picture(name, size), text("Which colour is it?")]
        made.append([{"role": "user", "content": shown}, {"role": "assistant", "content": f"It is {name}."}])
        if index == 1:
            more = [text("Is this one"), picture("blue"), text("or this one"), picture(name, size), text("red?")]
            made[-1] += [{"role": "user", "content": more}, {"role": "assistant", "content": "The second one."}]
    made.append([{"role": "user", "content": "And in words?"}, {"role": "assistant", "content": "Red and blue."}])
    return made


def has_trainable_projector(folder: Path) -> bool:
    return AutoConfig.from_pretrained(folder).model_type in projector.PATHS


@pytest.fixture
def sighted_job(job, sighted):
    def make(name: str = "run", **changes) -> Path:
        if changes.get("projector") and not has_trainable_projector(sighted):
            pytest.skip("the projector of this family is not trained")
        base = {"id": "test/sighted", "path": str(sighted)}
        return job(name, **{"rows": rows(), "base": base, **changes})

    return make


def plain_model(folder: Path):
    """The model with a shaken adapter, by transformers and peft alone."""
    spec = read_spec(folder)
    base = vision_reference.read_checkpoint(spec.base.path)[-1]
    adapter = lora_config(spec.lora)
    vision.restrict(adapter, base)
    if spec.projector:
        adapter.modules_to_save = [projector.path_of(base)]
    torch.manual_seed(spec.training.seed)
    model = get_peft_model(base.to(DEVICE), adapter)
    shake(model)
    return model


def plain_loss(sighted: Path, model, batch: list[list[dict]]) -> tuple[torch.Tensor, int]:
    """Mean loss of the learned tokens and their number, by transformers alone: its chat template, image processor,
    expansion of placeholders and positions; no packing.
    """
    config, tokenizer, template, processor, _ = vision_reference.read_checkpoint(str(sighted))
    total, targets = 0.0, 0
    for messages in batch:
        shown, images = [], []
        for message in messages:
            parts = message["content"] if isinstance(message["content"], list) else [text(message["content"])]
            for part in parts:
                if part["type"] == "image_url":
                    file = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                    images.append(Image.open(io.BytesIO(file)).convert("RGB"))
            content = [part if part["type"] == "text" else {"type": "image"} for part in parts]
            shown.append({"role": message["role"], "content": content})
        inputs = vision_reference.read_images(config, processor, images) if images else {}

        def ids_of(count: int, open_turn: bool, shown=shown, inputs=inputs) -> torch.Tensor:
            rendered = tokenizer.apply_chat_template(
                shown[:count], chat_template=template, tokenize=False, add_generation_prompt=open_turn
            )
            if inputs:
                rendered = vision_reference.expand_prompt(config, rendered, inputs)
            # What follows the end token is not learned.
            rendered = rendered if open_turn else rendered.rstrip("\n")
            return tokenizer(rendered, add_special_tokens=False, return_tensors="pt")["input_ids"]

        whole = ids_of(len(shown), False)
        trained = torch.zeros(whole.shape[1], dtype=torch.bool)
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                trained[ids_of(index, True).shape[1] : ids_of(index + 1, False).shape[1]] = True
        logits = model(**vision_reference.arguments(config, whole, inputs)).logits[0, :-1][trained[1:]]
        total += torch.nn.functional.cross_entropy(logits, whole[0, trained], reduction="sum")
        targets += int(trained.sum())
    return total / targets, targets


@pytest.mark.parametrize(
    "changes",
    [{"projector": True}, {}, pytest.param({"lora": {"dropout": 1e-9}}, marks=pytest.mark.full)],
    ids=["projector", "fast", "plain layers"],
)
def test_the_loss_and_its_gradients_are_those_of_transformers(sighted, sighted_job, loop_of, changes, monkeypatch):
    loop = loop_of(folder := sighted_job(training={"batch_size": 99}, **changes))
    model = plain_model(folder)
    expected, targets = plain_loss(sighted, model, rows())
    expected.backward()
    shake(loop.model)
    batch = loop.batch(0)
    found, _ = loop.gradients(batch)
    assert sum(row.targets for row in batch) == targets
    assert found == pytest.approx(float(expected.detach()), abs=2e-5)
    gradients = {name: parameter.grad for name, parameter in trainable(model).items()}
    for name, parameter in loop.parameters.items():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=2e-5, rtol=1e-3)
    seeing = [name for name in loop.parameters if any(f".{part}." in name for part in vision.PARTS)]
    weights = dict(projector.module_of(base_of(loop.model)).named_parameters()) if loop.spec.projector else {}
    assert len(seeing) == len(weights), "the projector if it is asked for, the tower never"
    assert all(bool(loop.parameters[name].grad.any()) for name in seeing)
    if any(sequence.is_mutual for row in batch for sequence in row.sequences):
        # As a GPU has rows; its kernel for rows of any length takes no mask.
        monkeypatch.setattr(layout, "supports_varlen", lambda device: True)
        assert loop.gradients(batch)[0] == pytest.approx(found, abs=2e-5)


def test_four_bits_leave_what_sees_as_it_is(sighted, sighted_job, loop_of):
    changes = {"projector": has_trainable_projector(sighted), "training": {"batch_size": 99, "learning_rate": 0.01}}
    loop = loop_of(sighted_job(method="qlora", **changes))
    quantized = [name for name, module in loop.model.named_modules() if is_quantized(module)]
    assert quantized and not any(f".{part}." in name for name in quantized for part in vision.PARTS)
    losses = [loop.step(loop.batch(0))[0] for _ in range(3)]
    assert losses[-1] < losses[0]


def prepared(sighted: Path, rows: list, max_length: int = 2048, objective: str = "sft"):
    """The rows as the trainer reads them, its warnings, and the tokenizer."""
    recorder, tokenizer = Recorder(), AutoTokenizer.from_pretrained(sighted)
    tokenizer.sight = sight_of(AutoConfig.from_pretrained(sighted), sighted, tokenizer)
    lines = [json.dumps(row if isinstance(row, dict) else {"messages": row}).encode() for row in rows]
    parsed = [parse_row(line, number, objective) for number, line in enumerate(lines, start=1)]
    return prepare(parsed, tokenizer, max_length, recorder), recorder.of("warning"), tokenizer


def test_pictures_have_the_tokens_that_their_processor_gives_them(sighted):
    _, tokenizer, _, processor, _ = vision_reference.read_checkpoint(str(sighted))
    config = AutoConfig.from_pretrained(sighted)
    sight = sight_of(config, sighted, tokenizer)
    for size in [(64, 64), (128, 128), (129, 64), (300, 20), (31, 250), (500, 499), (7, 9), (20, 33), (2000, 1500)]:
        image = Image.new("RGB", size)
        inputs = vision_reference.read_images(config, processor, [image])
        text = f"Look:\n{sight.image_text}\nA cat?"
        expected = vision_reference.expand_prompt(config, text, inputs)
        ids = tokenizer(sight.complete(text), add_special_tokens=False)["input_ids"]
        at = ids.index(sight.image_token)
        ids[at : at + 1] = sight.shown(Picture("", *size)).ids.tolist()
        assert ids == tokenizer(expected, add_special_tokens=False)["input_ids"], size


def test_rows_keep_their_pictures_whole_or_are_left_out(sighted):
    long = [text("word " * 50), picture("red", (150, 70)), text("Which colour is it?")]
    row = [{"role": "user", "content": long}, {"role": "assistant", "content": "Red, " * 30}]
    whole, _, tokenizer = prepared(sighted, [row])
    (sequence,) = whole.rows[0].sequences
    ((start, end),) = sequence.pictures
    shown = tokenizer.sight.shown(Picture("", 150, 70))
    assert (sequence.ids[start:end] == shown.ids).all() and not sequence.trained[start:end].any()
    assert (sequence.vectors[start:end] >= 0).sum() == shown.vectors == (sequence.vectors >= 0).sum()
    (cut,) = prepared(sighted, [row], len(sequence.ids) - 20)[0].rows[0].sequences
    assert cut.pictures == sequence.pictures and 0 < cut.targets < sequence.targets
    for max_length in (start + 1, end - 1):
        with pytest.raises(JobError, match="no picture is cut"):
            prepared(sighted, [row], max_length)
    # Its first answer alone would fit.
    later = [*rows()[0], {"role": "user", "content": [picture("blue", (150, 70))]}, *row[1:]]
    after = prepared(sighted, [later])[0].rows[0].sequences[0].pictures[1][1]
    assert prepared(sighted, [later], after + 9)[0].rows
    with pytest.raises(JobError, match="no picture is cut"):
        prepared(sighted, [later], after - 1)
    left, warnings, _ = prepared(sighted, [row, *rows()[-1:]], end - 1)
    assert [row.number for row in left.rows] == [2] and left.dropped_rows == 1 and warnings
    pair = pair_row(row[:1], "Red.", "Green, I think.")
    kept = prepared(sighted, [pair], end, "dpo")[0].rows[0].sequences
    assert max(len(each.ids) for each in kept) == end and kept[0].pictures[0][0] < start, "text before it is cut"
    if kept[0].positions is not None:
        assert (kept[0].positions[:, 0] == 0).all()
    with pytest.raises(JobError, match="no picture is cut"):
        prepared(sighted, [pair], shown.vectors + 8, "dpo")


def test_prompts_share_no_more_than_what_they_show_alike(sighted):
    data, _, _ = prepared(sighted, colour_rows([(64, 64)]))
    sequences = [sequence for row in data.rows for sequence in row.sequences]
    assert len({sequence.ids[: sequence.pictures[0][1]].tobytes() for sequence in sequences}) == 1
    first = sequences[0].vectors
    assert 0 < shared_prefix(sequences) <= int((first >= 0).argmax())
    assert shared_prefix([sequences[0], sequences[0]]) > sequences[0].pictures[0][1]


def test_a_users_text_makes_no_picture(sighted):
    named = "What do <image> and <|image_pad|> mean?"
    row = [{"role": "user", "content": [text(named), picture("red")]}, {"role": "assistant", "content": "A place."}]
    data, _, tokenizer = prepared(sighted, [row])
    (sequence,) = data.rows[0].sequences
    assert len(sequence.pictures) == 1
    assert named in tokenizer.decode(sequence.ids[sequence.vectors < 0])


def test_pictures_are_upright_on_white_and_only_of_four_formats():
    turned, orientation = Image.new("RGB", (4, 2), "red"), Image.Exif()
    orientation[0x0112] = 6
    file = file_of(data_url(turned, "JPEG", exif=orientation))
    assert size_of(file) == decode(file).size == (2, 4)
    assert decode(file_of(data_url(Image.new("RGBA", (2, 2), (0, 0, 0, 0))))).getpixel((0, 0)) == (255, 255, 255)
    grey = Image.new("I;16", (2, 2), 0x8080)
    assert decode(file_of(data_url(grey))).getpixel((0, 0)) == (128, 128, 128)
    frames = [Image.new("P", (3, 3), number) for number in (0, 200)]
    gif = file_of(data_url(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert decode(gif).size == (3, 3)
    with pytest.raises(PictureError, match="no JPEG"):
        size_of(file_of(data_url(turned, "TIFF")))
    with pytest.raises(PictureError, match="damaged"):
        decode(file_of(data_url(Image.effect_noise((90, 90), 50)))[:-900])
    with pytest.raises(JobError, match="Row 4 has a picture that cannot be read: its url is not a data URL"):
        bad = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        parse_row(json.dumps({"messages": [{"role": "user", "content": [bad]}]}).encode(), 4)


def colour_rows(sizes: list[tuple[int, int]]) -> list[list[dict]]:
    return [
        [
            {"role": "user", "content": [text("Which colour is this?"), picture(colour, size)]},
            {"role": "assistant", "content": colour},
        ]
        for size in sizes
        for colour in COLOURS
    ]


@pytest.mark.parametrize("sighted", RUNS, indirect=True)
@pytest.mark.parametrize(
    "trains_projector", [pytest.param(False, marks=pytest.mark.full), True], ids=["frozen", "projector"]
)
def test_a_run_learns_to_tell_colours_and_resumes_exactly(
    sighted, sighted_job, loop_of, tmp_path, monkeypatch, trains_projector
):
    # With tokens for the colours.
    base = make_tiny_vision(AutoConfig.from_pretrained(sighted).model_type, tmp_path / "base")
    changes = {
        "base": {"id": "test/sighted", "path": str(base)},
        "projector": trains_projector,
        "rows": colour_rows([(64, 64), (96, 40), (40, 96), (128, 128)]),
        "lora": {"r": 8, "alpha": 16},
        "training": {"epochs": 12, "batch_size": 8, "learning_rate": 0.01},
        "evaluation": {"split": 0.25},
        "checkpoint": {"every_steps": 15, "keep": 9},
    }
    whole = loop_of(sighted_job("whole", **changes), recorder := Recorder())
    assert whole.run()
    scores = [event for event in recorder.of("metrics") if "validation_loss" in event]
    assert scores[-1]["validation_loss"] < scores[0]["validation_loss"] / 1.5
    assert scores[-1]["validation_exact"] == 1, "every held-out picture is named"
    first = recorder.of("checkpoint")[0]
    candidate = {"path": first["path"], "sha256": first["sha256"], "step": first["step"]}
    monkeypatch.setattr(Features, "_encoded", None)
    resumed = loop_of(sighted_job("resumed", **changes, resume_from=[candidate]))
    assert resumed.resumed and not resumed.features.missing, "the pictures' vectors are kept"
    assert resumed.run()
    for name, parameter in resumed.parameters.items():
        assert torch.equal(parameter, whole.parameters[name]), name


@pytest.mark.parametrize("sighted", RUNS, indirect=True)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"projector": True},
        pytest.param({"method": "full", "lora": None}, marks=pytest.mark.full),
        pytest.param({"method": "full", "lora": None, "projector": True}, marks=pytest.mark.full),
    ],
    ids=["lora", "lora and projector", "full", "full and projector"],
)
def test_results_are_the_model_that_was_trained(sighted, sighted_job, loop_of, changes):
    loop = loop_of(folder := sighted_job(training={"batch_size": 99}, **changes))
    before = {name: parameter.clone() for name, parameter in base_of(loop.model).named_parameters()}
    loop.step(loop.batch(0))
    trained = base_of(loop.model).named_parameters()
    changed = {name for name, parameter in trained if not torch.equal(parameter, before[name])}
    seeing = {name for name in changed if any(part in name for part in vision.PARTS)}
    weights = projector.weights_of(base_of(loop.model)) if loop.spec.projector else {}
    assert changed > seeing and len(seeing) == len(weights), "only what the job says"
    loss, _ = loop.gradients(loop.batch(0))
    saved = save(loop.model, AutoTokenizer.from_pretrained(sighted), read_spec(folder), folder / "out")
    assert (saved.folder / "preprocessor_config.json").exists() and saved.gguf.exists()
    whole = changes.get("method") == "full"
    base = vision_reference.read_checkpoint(str(saved.folder if whole else sighted))[-1]
    model = base if whole else PeftModel.from_pretrained(base, saved.folder)
    with torch.no_grad():
        assert float(plain_loss(sighted, model, rows())[0]) == pytest.approx(loss, abs=2e-5)
    if not loop.spec.projector:
        assert saved.projector is None
        return
    served = [torch.tensor(each.data.astype("float32")) for each in gguf.GGUFReader(saved.projector).tensors]
    for name, weight in weights.items():
        alike = [each for each in served if each.shape == weight.shape and torch.allclose(each, weight, atol=1e-3)]
        assert alike, f"the engine's file has the trained {name}"


@pytest.mark.parametrize("objective", ["dpo", pytest.param("kto", marks=pytest.mark.full)])
def test_preferences_about_pictures_have_the_gradients_of_separate_documents(sighted, sighted_job, loop_of, objective):
    prompts = [(row[:1], row[1]["content"]) for row in rows()]
    if objective == "dpo":
        made = [pair_row(prompt, answer, "I see nothing.") for prompt, answer in prompts]
    else:
        made = [rated_row(prompt, answer, len(answer) % 2 == 0) for prompt, answer in prompts]
    lines = "".join(json.dumps(row) + "\n" for row in made)
    seen = objective == "dpo" and has_trainable_projector(sighted)
    folder = sighted_job(text=lines, rows=None, options={"objective": objective}, projector=seen)
    found = {}
    for limits in (Limits(), Limits(documents=1)):
        loop = loop_of(folder)
        loop.limits = limits
        loop.reference_of(loop.data.rows)
        assert loop.gradients(loop.batch(0))[0] == pytest.approx(0.693147 if objective == "dpo" else 0.5, abs=1e-5)
        found[limits] = {name: parameter.grad for name, parameter in loop.parameters.items()}
    packed, separate = found.values()
    for name, gradient in packed.items():
        torch.testing.assert_close(gradient, separate[name], atol=1e-6, rtol=1e-3)


def test_a_projector_is_refused_for_a_base_that_reads_text(job):
    with pytest.raises(JobError, match=r"can be trained for idefics3, .*this base is llama"):
        prepare_run(read_spec(folder := job(projector=True)), folder, Recorder())


def test_a_projector_is_refused_for_rows_without_pictures(sighted_job):
    with pytest.raises(JobError, match="no row of the dataset has a picture"):
        prepare_run(read_spec(folder := sighted_job(projector=True, rows=rows()[-1:])), folder, Recorder())
