"""A merged GGUF file has the base's weights plus the adapter's changes, and everything else unchanged."""

import hashlib

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from trainer.cli.merge import NotMergeableError, merge

INPUTS, OUTPUTS, RANK, ALPHA = 96, 70, 4, 12.0
ADAPTED = {"blk.0.attn_q.weight": Type.Q4_1, "blk.0.ffn_up.weight": Type.F16, "blk.1.attn_q.weight": Type.Q8_0}


def write_base(file, random):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_chat_template("{{ messages }}")
    writer.add_token_list(["a", "b"])
    plain = {"token_embd.weight": Type.Q8_0, "blk.0.attn_norm.weight": Type.F32, "blk.1.ffn_up.weight": Type.Q4_1}
    for name, kind in (plain | ADAPTED).items():
        weights = random.normal(0, 0.2, (OUTPUTS, INPUTS) if "norm" not in name else (INPUTS,)).astype(np.float32)
        writer.add_tensor(name, quants.quantize(weights, kind), raw_dtype=kind)
    close(writer)


def write_adapter(file, random, names, inputs=INPUTS, alpha=ALPHA):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name in names:
        writer.add_tensor(f"{name}.lora_a", random.normal(0, 0.1, (RANK, inputs)).astype(np.float16))
        writer.add_tensor(f"{name}.lora_b", random.normal(0, 0.1, (OUTPUTS, RANK)).astype(np.float16))
    close(writer)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights_of(file):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(7)
    write_base(tmp_path / "base.gguf", random)
    write_adapter(tmp_path / "adapter.gguf", random, ADAPTED)
    return tmp_path, random


@pytest.mark.parametrize(("alpha", "scale"), [(ALPHA, ALPHA / RANK), (0.0, 1.0)])
def test_adapted_weights_are_sums_and_everything_else_is_copied(files, alpha, scale, monkeypatch):
    folder, random = files
    # Several chunks with a shorter last one.
    monkeypatch.setattr("trainer.cli.merge.CHUNK_WEIGHTS", 16 * INPUTS)
    write_adapter(folder / "adapter.gguf", random, ADAPTED, alpha=alpha)
    merge(folder / "base.gguf", folder / "adapter.gguf", folder / "merged.gguf")
    base, adapter, merged = (weights_of(folder / f"{name}.gguf") for name in ("base", "adapter", "merged"))
    assert list(merged) == list(base)
    for name, tensor in merged.items():
        if name not in ADAPTED:
            assert tensor.tensor_type == base[name].tensor_type
            assert tensor.data.tobytes() == base[name].data.tobytes()
            continue
        assert tensor.tensor_type == (Type.F16 if ADAPTED[name] == Type.F16 else Type.Q8_0)
        a, b = (adapter[f"{name}.lora_{part}"].data.astype(np.float64) for part in "ab")
        added = scale * (b @ a)
        error = quants.dequantize(tensor.data, tensor.tensor_type) - (
            quants.dequantize(base[name].data, base[name].tensor_type) + added
        )
        # Half a step of eight bits, small against what was added.
        assert np.abs(error).max() < 0.6 / 127
        assert np.sqrt((error**2).mean()) < 0.1 * np.sqrt((added**2).mean())
    fields = [gguf.GGUFReader(folder / f"{name}.gguf").fields for name in ("base", "merged")]
    assert {name: field.contents() for name, field in fields[0].items()} == {
        name: field.contents() for name, field in fields[1].items()
    }


@pytest.mark.parametrize(
    ("names", "inputs", "why"),
    [
        (["blk.9.attn_q.weight"], INPUTS, "the base has no blk.9.attn_q.weight"),
        (["blk.0.attn_q.weight"], INPUTS * 2, "another shape"),
        (["token_embd.weight"], INPUTS, "embeddings"),
        (["blk.0.attn_norm.weight"], INPUTS, "no matrix"),
        ([], INPUTS, "changes nothing"),
    ],
)
def test_an_adapter_that_does_not_fit_leaves_no_file(files, names, inputs, why):
    folder, random = files
    write_adapter(folder / "adapter.gguf", random, names, inputs)
    with pytest.raises(NotMergeableError, match=why):
        merge(folder / "base.gguf", folder / "adapter.gguf", folder / "merged.gguf")
    assert sorted(file.name for file in folder.iterdir()) == ["adapter.gguf", "base.gguf"]


def test_a_merged_file_says_what_was_merged_and_is_otherwise_the_same(files):
    folder, _ = files
    merge(folder / "base.gguf", folder / "adapter.gguf", folder / "plain.gguf")
    merge(folder / "base.gguf", folder / "adapter.gguf", folder / "named.gguf", names=("owner/base", "mdl_é"))
    plain, named = (gguf.GGUFReader(folder / f"{name}.gguf") for name in ("plain", "named"))
    written = {name: field.contents() for name, field in named.fields.items() if name.startswith("tunery.")}

    def sha256(name):
        return hashlib.sha256((folder / name).read_bytes()).hexdigest()

    assert written == {
        "tunery.merged.base": "owner/base",
        "tunery.merged.base_sha256": sha256("base.gguf"),
        "tunery.merged.adapter": "mdl_é",
        "tunery.merged.adapter_sha256": sha256("adapter.gguf"),
    }
    others = [name for name in named.fields if name not in written and not name.startswith("GGUF.")]
    assert others == [name for name in plain.fields if not name.startswith("GGUF.")]
    for one, other in zip(plain.tensors, named.tensors, strict=True):
        assert (one.name, one.tensor_type, one.data.tobytes()) == (other.name, other.tensor_type, other.data.tobytes())
