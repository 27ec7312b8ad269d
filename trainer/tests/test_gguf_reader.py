"""The reader of GGUF files for large vocabularies reads what the library's reads."""

import gguf
import numpy as np
import pytest

from trainer.runtime.gguf_reader import GgufReader

ARRAYS = {
    "tokens": ["a", "", "Ärger 東京 🙂", "b" * 300],
    "kinds": [1, 3, -1],
    "scores": [0.5, -2.0],
    "flags": [True, False],
    "pairs": [[1, 2], [3, 4]],
}


@pytest.fixture
def file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for name, values in ARRAYS.items():
        writer.add_array(name, values)
    writer.add_string("last", "text")
    writer.add_tensor("weight", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model.gguf"


def test_fields_and_tensors_are_the_librarys(file):
    reader, library = GgufReader(file), gguf.GGUFReader(file)
    assert reader.fields.keys() == library.fields.keys() > ARRAYS.keys()
    for name, field in reader.fields.items():
        expected = library.fields[name]
        assert (field.offset, field.data, field.types) == (expected.offset, expected.data, expected.types)
        assert [part.tolist() for part in field.parts] == [part.tolist() for part in expected.parts]
        assert field.contents() == expected.contents()
    assert reader.fields["tokens"].contents() == ARRAYS["tokens"]
    assert np.array_equal(reader.tensors[0].data, library.tensors[0].data)


@pytest.mark.parametrize("after", ["tokens", "kinds"])
def test_an_array_that_ends_with_the_file_is_an_error(file, after):
    whole = file.read_bytes()
    for cut in (30, 40):
        file.write_bytes(whole[: whole.index(after.encode()) + cut])
        with pytest.raises((ValueError, IndexError)):
            GgufReader(file)
