"""The faster tower: its vectors are as near to those in float32 as what transformers' tower makes in bf16."""

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

from trainer.data.sight import sight_of
from trainer.model import fast_tower
from trainer.model.load import BF16_CAPABILITIES
from trainer.model.vision import encoded, image_processor, tower_of
from trainer.tests.make_tiny_vision import make_tiny_vision

SIZES = {"vision": {"image_size": 128}, "processor": {"max_image_size": {"longest_edge": 128}}}

pytestmark = pytest.mark.skipif(
    not any(torch.cpu.get_capabilities().get(name) for name in BF16_CAPABILITIES), reason="this CPU has no bf16"
)


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl"])
def test_vectors_are_as_near_to_those_of_float32(family, tmp_path):
    folder = make_tiny_vision(family, tmp_path, vocabulary=2048, **(SIZES if family == "smolvlm" else {}))
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sight = sight_of(config, folder, tokenizer)
    processor = image_processor(sight, folder)
    # Enough patches that attention is not left to torch.
    image = Image.effect_noise((240, 160), 90).convert("RGB")

    def load(dtype: torch.dtype):
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()

    def vectors_of(base) -> torch.Tensor:
        return encoded(base, sight, processor, image, torch.device("cpu")).float()

    exact, base = vectors_of(load(torch.float32)), load(torch.bfloat16)
    slow, calls = vectors_of(base), []
    tower, attend = tower_of(base), fast_tower.attend
    undo = fast_tower.install(tower)
    fast_tower.AttentionInterface.register(fast_tower.NAME, lambda *a, **k: calls.append(1) or attend(*a, **k))
    try:
        fast = vectors_of(base)
    finally:
        fast_tower.AttentionInterface.register(fast_tower.NAME, attend)
    undo()

    def error(made: torch.Tensor) -> float:
        return float((made - exact).norm() / exact.norm())

    assert calls
    assert not torch.equal(fast, slow)
    assert error(fast) < 1.5 * error(slow) < 0.2
    assert torch.equal(vectors_of(base), slow)
