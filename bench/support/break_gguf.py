"""Writes a broken copy of an adapter's GGUF file: `python -m bench.support.break_gguf IN OUT half|double|layers`."""

import re
import sys

import gguf


def main() -> None:
    source, out, how = sys.argv[1:4]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    scale = {"half": 0.5, "double": 2.0}.get(how, 1.0)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", scale * reader.get_field("adapter.lora.alpha").contents())
    layers = 1 + max(int(found[1]) for tensor in reader.tensors if (found := re.match(r"blk\.(\d+)\.", tensor.name)))

    def renamed(name: str) -> str:
        return (
            re.sub(r"blk\.(\d+)\.", lambda found: f"blk.{(int(found[1]) + 1) % layers}.", name)
            if how == "layers"
            else name
        )

    for tensor in reader.tensors:
        writer.add_tensor(renamed(tensor.name), tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
