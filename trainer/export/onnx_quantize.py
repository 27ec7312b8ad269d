"""Quantizes the weights of an ONNX graph to 8 or 4 bits, with ONNX Runtime's quantizer.

Takes the model builder's float32 graph. Quantizes its matrices one by one from the file: for a whole graph the
quantizer needs four times its size.

Each 32 weights share a scale and a zero point. The CPU provider computes activations in 8 bits (accuracy_level 4). With
4 bits, the most sensitive matrices keep 8: the embedding, the head, and by llama.cpp's rule the values and the last
projection of half the layers.
"""

import logging
import re
from pathlib import Path
from typing import TypeGuard, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from trainer.runtime.protocol import Report

BLOCK = 32
# Columns of a matrix quantized at once, so that a vocabulary's matrix is not in memory several times.
COLUMNS = 8192
SENSITIVE = re.compile(r"/layers\.(\d+)/(?:attn/(?:qkv_proj|v_proj)|mlp/down_proj)/MatMul$")
DOMAIN = "com.microsoft"
# The quantizer logs two lines for each matrix.
logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.WARNING)


def quantize(source: Path, out: Path, bits: int, report: Report) -> None:
    """Writes `out` and `out`.data next to it. Calls `report` with the progress, 0 to 1."""
    model = ir.load(source)  # pyright: ignore[reportUnknownMemberType]
    graph = model.graph
    layers = 1 + max((int(match[1]) for node in graph if (match := SENSITIVE.search(node.name or ""))), default=0)
    products = [(node, weight) for node in graph if node.op_type == "MatMul" and _is_matrix(weight := node.inputs[1])]
    values_by_weight: dict[str | None, list[ir.Value]] = {}
    for number, (node, weight) in enumerate(products):
        if weight.name not in values_by_weight:
            values_by_weight[weight.name] = _quantized(graph, weight, bits_of(node.name or "", bits, layers))
        _replace(graph, node, weight, values_by_weight[weight.name])
        report((number + 1) / (len(products) + 1))
    for node in [node for node in graph if node.op_type == "Gather"]:
        _embed(graph, node, values_by_weight)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
    graph.sort()
    data = f"{out.name}.data"
    ir.save(model, out, external_data=data, size_threshold_bytes=0)  # pyright: ignore[reportUnknownMemberType]


def bits_of(name: str, bits: int, layers: int) -> int:
    """The bits of a matrix, by its node's name in the builder's graph."""
    match = SENSITIVE.search(name)
    if name == "/lm_head/MatMul":
        return 8
    if bits == 8 or not match:
        return bits
    layer = int(match[1])
    return 8 if layer < layers / 8 or layer >= 7 * layers / 8 or (layer - round(layers / 8)) % 3 == 2 else 4


def _is_matrix(value: ir.Value | None) -> TypeGuard[ir.Value]:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def _constant(value: ir.Value) -> ir.TensorProtocol:
    """The tensor of an initializer."""
    assert value.const_value is not None
    return value.const_value


def _shape_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of an initializer."""
    return _dimensions(_constant(value))


def _dimensions(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    # The shape of a tensor with numbers has no symbols in it.
    return cast(tuple[int, ...], tuple(tensor.shape))


def _quantized(graph: ir.Graph, weight: ir.Value, bits: int) -> list[ir.Value]:
    """The packed weights, scales and zero points of a matrix [inputs, outputs], as initializers of the graph."""
    matrix = _constant(weight).numpy()
    pieces = [_pieces(matrix[:, first : first + COLUMNS], bits) for first in range(0, matrix.shape[1], COLUMNS)]
    values: list[ir.Value] = []
    for part, arrays in zip(("quantized", "scales", "zero_points"), zip(*pieces, strict=True), strict=True):
        tensor = ir.tensor(np.concatenate(arrays), name=f"{weight.name}_{part}")
        shape = ir.Shape(_dimensions(tensor))
        value = ir.Value(name=tensor.name, const_value=tensor, shape=shape, type=ir.TensorType(tensor.dtype))
        graph.register_initializer(value)
        values.append(value)
    return values


def _pieces(columns: np.ndarray, bits: int) -> list[np.ndarray]:
    """Quantizes some columns: the quantizer takes a graph, here with a single multiplication."""
    helper = onnx.helper
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")
    weights = onnx.numpy_helper.from_array(np.ascontiguousarray(columns, np.float32), "w")
    inputs, outputs = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    single = helper.make_model(
        helper.make_graph([node], "one", [inputs], [outputs], [weights]), opset_imports=[helper.make_opsetid("", 21)]
    )
    quantizer = MatMulNBitsQuantizer(single, bits=bits, block_size=BLOCK, is_symmetric=False, accuracy_level=4)
    quantizer.process()
    quantized = quantizer.model.model.graph
    (node,) = quantized.node
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.initializer}
    return [arrays[name] for name in node.input[1:]]


def _replace(graph: ir.Graph, node: ir.Node, weight: ir.Value, values: list[ir.Value]) -> None:
    inputs, outputs = _shape_of(weight)
    bits = 8 * _shape_of(values[0])[2] // BLOCK
    attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
    new = ir.node("MatMulNBits", [node.inputs[0], *values], attributes, domain=DOMAIN, name=node.name)
    graph.insert_before(node, new)
    _replace_node(graph, node, new)


def _embed(graph: ir.Graph, node: ir.Node, values_by_weight: dict[str | None, list[ir.Value]]) -> None:
    """Reads embeddings from 8-bit rows: the head's, if it has the same weights."""
    table = node.inputs[0]
    transpose = table.producer() if table is not None else None
    head = transpose.inputs[0] if transpose is not None and transpose.op_type == "Transpose" else None
    shared = head is not None and head.name in values_by_weight
    source = head if shared else table
    if not _is_matrix(source):
        return
    rows, width = reversed(_shape_of(source)) if shared else _shape_of(source)
    if width % BLOCK:
        return
    if shared:
        values = values_by_weight[source.name]
    else:
        matrix = ir.Value(name=source.name, const_value=ir.tensor(_constant(source).numpy().T))
        values = _quantized(graph, matrix, 8)
    # Both operators share one copy of the bytes in different shapes. The shape must be in the graph, as ONNX Runtime
    # infers other shapes from it.
    shape = ir.node("Constant", [], {"value_ints": [rows, width]}, name=f"{node.name}/Shape")
    flat = ir.node("Reshape", [values[0], shape.outputs[0]], name=f"{node.name}/Reshape")
    attributes = {"bits": 8, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
    new = ir.node(
        "GatherBlockQuantized",
        [flat.outputs[0], node.inputs[1], *values[1:]],
        attributes,
        domain=DOMAIN,
        name=node.name,
    )
    for added in (shape, flat, new):
        added.outputs[0].name = f"{added.name}/output_0"
        graph.insert_before(node, added)
    _replace_node(graph, node, new)
    if shared and transpose is not None:
        graph.remove(transpose, safe=True)


def _replace_node(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    before, after = old.outputs[0], new.outputs[0]
    name = before.name
    after.shape, after.type = before.shape, before.type
    before.replace_all_uses_with(after, replace_graph_outputs=True)
    graph.remove(old, safe=True)
    after.name = name
