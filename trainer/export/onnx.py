"""Converts a merged checkpoint to a folder for ONNX Runtime with the model builder of onnxruntime-genai.

The folder's layout suits Transformers.js and onnxruntime-genai:

    config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja, …   from the
                                                  checkpoint
    genai_config.json                             the same facts for onnxruntime-genai
    onnx/model.onnx, onnx/model.onnx_data         the graph and its weights; model_fp16, model_int8 or model_q4 by
                                                  precision

One graph computes prompts and single tokens. Inputs and outputs, with L layers, K key heads and head size H:

    input_ids                        int64  [batch, tokens]
    attention_mask                   int64  [batch, past + tokens]     ones; rows of a batch are padded on the right
    position_ids                     int64  [batch, tokens]            only for some architectures
    past_key_values.0.key … L-1      float  [batch, K, past, H]        past is 0 with the prompt; .value alike
    past.0.conv … L-1                float  [batch, channels, width]   of short convolutions; zeros with the prompt
    logits                           float  [batch, tokens, vocabulary]
    present.0.key … L-1              float  [batch, K, past + tokens, H]   the next call's past_key_values; .value alike
    present.0.conv … L-1             float  [batch, channels, width]   the next call's past

float is float16 in an export of fp16, else float32. The operators are from ONNX and ONNX Runtime (com.microsoft).
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Generator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer.export.onnx_write_monitor import WriteMonitor
from trainer.export.spec import instead_of
from trainer.runtime.errors import JobError, converting
from trainer.runtime.protocol import Report

# Files of the checkpoint that are not copied.
NOT_COPIED = (".safetensors", ".safetensors.index.json")
# The builder's file names.
GRAPH, DATA = "model.onnx", "model.onnx.data"


@dataclass(frozen=True)
class Precision:
    """`dtype` is Transformers.js's name, `suffix` its ending of the file's name. The other fields are for the builder.

    `target`: the provider that the graph is made for; ONNX Runtime's other providers run it too. (A graph that the
    builder makes in 16 bits for the CPU fails at the second token.) `bits`: the bits to quantize the weights to.
    """

    dtype: str
    suffix: str
    name: str
    target: str
    bits: int | None = None


PRECISIONS = {
    "fp32": Precision("fp32", "", "fp32", "cpu"),
    "fp16": Precision("fp16", "_fp16", "fp16", "cuda"),
    "int8": Precision("int8", "_int8", "fp32", "cpu", 8),
    "int4": Precision("q4", "_q4", "fp32", "cpu", 4),
}


def build(hf_folder: Path, graph: Path, quantization: str | None, threads: int, report: Report) -> None:
    """Writes the graph with unquantized weights into the folder `graph`. Calls `report` with the progress, 0 to 1.

    Raises JobError("parameter_not_supported") for an unknown precision, or an architecture that the builder does not
    support; JobError("internal") if it fails.
    """
    import torch

    precision = precision_of(quantization)
    torch.set_num_threads(threads)
    shutil.rmtree(graph, ignore_errors=True)
    architecture = (json.loads((hf_folder / "config.json").read_text()).get("architectures") or ["unknown"])[0]
    what = f"No ONNX graph can be made of the architecture {architecture}: the model builder of onnxruntime-genai"
    with (
        WriteMonitor(hf_folder, graph / DATA, report),
        contextlib.redirect_stdout(sys.stderr),
        converting(f"{what} fails", instead_of("onnx")),
    ):
        builder: Any = import_module("onnxruntime_genai.models.builder")

        builder_arguments = (None, str(hf_folder), str(graph), precision.name, precision.target, str(graph / "cache"))
        try:
            # The cache of a layer with a window grows as that of others: a fixed one would have to be given at once.
            options = builder.parse_extra_options(*builder_arguments, ["hf_token=false", "windowed_kv_cache=false"])
            with _rope_of_each_layer():
                builder.create_model(*builder_arguments, **options)
        except NotImplementedError as problem:
            raise JobError("parameter_not_supported", f"{what} does not know it. {instead_of('onnx')}") from problem


@contextlib.contextmanager
def _rope_of_each_layer() -> Generator[None]:
    """The builder reads rotary embeddings that differ between layers with a window and others: transformers 5 stores
    them by the kind of layer, and the builder looks where earlier releases did. And it leaves them out of the layers
    that have none: there it asks for positions that the graph does not get.
    """
    # The builder imports its modules by names of their own.
    Builder: Any = import_module("builders.base").Model
    read, rotate = Builder.make_rope_init, Builder.make_attention_qk_rope

    def read_kinds(model: Any, config: Any) -> None:
        kinds: Any = getattr(config, "rope_parameters", None)
        if isinstance(kinds, dict) and {"full_attention", "sliding_attention"} <= kinds.keys():
            config.rope_parameters = kinds["full_attention"]
            config.rope_local_base_freq = kinds["sliding_attention"]["rope_theta"]
            model.rope_attrs["theta"] = kinds["full_attention"]["rope_theta"]
        read(model, config)

    def rotate_some(model: Any, *arguments: Any, **named: Any) -> tuple[str, str]:
        if not model.attention_attrs["use_rope_in_attn"] and "position_ids" not in model.input_names:
            return "", ""
        return rotate(model, *arguments, **named)

    Builder.make_rope_init, Builder.make_attention_qk_rope = read_kinds, rotate_some
    try:
        yield
    finally:
        Builder.make_rope_init, Builder.make_attention_qk_rope = read, rotate


def finish(hf_folder: Path, graph: Path, out: Path, quantization: str | None, report: Report) -> None:
    """Quantizes the graph of `build` if the precision needs it, and writes the folder `out`. Needs no torch."""
    from trainer.export.onnx_quantize import quantize

    precision = precision_of(quantization)
    if precision.bits:
        small = graph / "small.onnx"
        quantize(graph / GRAPH, small, precision.bits, report)
        small.rename(graph / GRAPH)
        small.with_name("small.onnx.data").rename(graph / DATA)
    _lay_out(hf_folder, graph, out, precision)
    report(1.0)


def precision_of(quantization: str | None) -> Precision:
    """The precision of an export, fp32 by default. Raises JobError("parameter_not_supported") for one that ONNX does
    not have.
    """
    precision = PRECISIONS.get(quantization or "fp32")
    if precision is None:
        raise JobError(
            "parameter_not_supported", f"ONNX is exported in {', '.join(PRECISIONS)}, and not in {quantization}."
        )
    return precision


def _lay_out(hf_folder: Path, built: Path, out: Path, precision: Precision) -> None:
    import onnx

    name = f"model{precision.suffix}.onnx"
    folder = out / "onnx"
    folder.mkdir(parents=True)
    (built / DATA).rename(folder / f"{name}_data")
    graph = onnx.load(str(built / GRAPH), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    # The only name for the weights' file that Transformers.js accepts.
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{name}_data"
    genai = json.loads((built / "genai_config.json").read_text())
    # The builder writes a name instead of the size, so readers could not build an empty cache from the graph.
    for value in [*graph.graph.input, *graph.graph.output]:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == "kv_cache_dim":
                dimension.dim_value = genai["model"]["decoder"]["head_size"]
    onnx.save(graph, str(folder / name))  # pyright: ignore[reportUnknownMemberType]
    for file in hf_folder.iterdir():
        if file.is_file() and not file.name.endswith(NOT_COPIED):
            shutil.copyfile(file, out / file.name)
    template, tokenizer = out / "chat_template.jinja", out / "tokenizer_config.json"
    if template.exists() and tokenizer.exists():
        # Transformers.js reads the template only from there.
        _write(tokenizer, json.loads(tokenizer.read_text()) | {"chat_template": template.read_text()})
    genai["model"]["decoder"]["filename"] = f"onnx/{name}"
    # The builder names the graph's provider, and onnxruntime-genai would refuse to run without it.
    genai["model"]["decoder"]["session_options"]["provider_options"] = []
    _write(out / "genai_config.json", genai)
    config = json.loads((hf_folder / "config.json").read_text())
    config["transformers.js_config"] = {"dtype": precision.dtype, "use_external_data_format": {name: 1}}
    _write(out / "config.json", config)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def runtime() -> str:
    """The runtime's name for the export's record."""
    return f"onnxruntime {version('onnxruntime')}"


def answers(folder: Path, reference: dict[str, Any], threads: int, report: Report) -> list[dict[str, Any]]:
    """The folder's own answers in ONNX Runtime, with its tokenizer, template and end tokens; rows like the
    reference's.
    """
    from transformers import AutoTokenizer

    from trainer.data.loss_mask import prompt_ids
    from trainer.export.onnx_session import Session

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.parse_control_tokens = reference.get("parse_control_tokens", True)
    session = Session(folder, threads)
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(reference["rows"]):
        prompt = prompt_ids(tokenizer, row["messages"])
        answer, log_probabilities = session.answer(prompt, row["answer_tokens"])
        text = tokenizer.decode(answer, skip_special_tokens=True)
        answer_row = {"messages": row["messages"], "prompt_tokens": prompt, "answer_tokens": answer, "answer": text}
        rows.append(answer_row | {"log_probabilities": log_probabilities})
        report((number + 1) / len(reference["rows"]))
    return rows
