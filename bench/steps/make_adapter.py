"""Writes an untrained adapter of rank 16 on all layers: `python -m bench.steps.make_adapter MODEL.gguf OUT.gguf`.

The factors are random, as the time of a step does not depend on their values.
"""

import re
import sys

import gguf
import numpy

rank = 16


def main() -> None:
    source, out = sys.argv[1:3]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", rank)
    random = numpy.random.default_rng(0)
    for tensor in reader.tensors:
        if not re.fullmatch(r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight", tensor.name):
            continue
        columns, rows = (int(size) for size in tensor.shape)
        for factor, shape in (("lora_a", (rank, columns)), ("lora_b", (rows, rank))):
            values = random.normal(scale=0.01, size=shape).astype(numpy.float16)
            writer.add_tensor(f"{tensor.name}.{factor}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
