"""Converts a result's folder to the GGUF file for the engine: a LoRA adapter, or a whole model."""

from pathlib import Path

from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_identity import add_to_gguf
from trainer.model.adapter_gguf import write_adapter_gguf
from trainer.runtime.converters import run_converter
from trainer.runtime.errors import JobError
from trainer.runtime.spec import ModelSpec

# Half precision changes a weight by at most 1 part in 2,000, far less than the base's quantization, and halves what the
# engine reads of the adapter for every token. The PEFT folder keeps float32.
ADAPTER_TYPE = "f16"
# Eight bits serve twice as fast as sixteen with the same answers up to the last digits. The folder keeps float32.
MODEL_TYPE = "q8_0"


def convert_model(converters: Path, folder: Path, gguf: Path) -> None:
    """Converts a whole checkpoint. Raises RuntimeError or JobError("internal") if there is no file afterwards."""
    arguments = [str(folder), "--outfile", str(gguf), "--outtype", MODEL_TYPE]
    run_converter(converters, "convert_hf_to_gguf.py", arguments)
    if not gguf.exists():
        raise JobError("internal", "The converter left no file.")


def convert_adapter(tokenizer: Tokenizer, spec: ModelSpec, folder: Path, gguf: Path) -> None:
    """Converts a PEFT folder, and adds template and end token. Raises JobError("adapter_invalid") if the engine cannot
    serve it as an adapter.
    """
    write_adapter_gguf(Path(spec.converters), Path(spec.base.path), folder, gguf, ADAPTER_TYPE)
    add_to_gguf(gguf, tokenizer, spec)
