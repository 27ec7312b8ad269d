# The names that the trainer takes from the top of transformers, for pyright alone. The package itself imports its
# hundreds of models there, which doubles the time of the check, and leaves open what these classes return.
from typing import Any

from transformers.masking_utils import AttentionMaskInterface as AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING as CONFIG_MAPPING
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig

class _Auto:
    # The class depends on the checkpoint: see the protocols `Tokenizer` and `Model`.
    @classmethod
    def from_pretrained(cls, folder: Any, **options: Any) -> Any: ...
    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Any: ...

class AutoConfig(_Auto): ...
class AutoTokenizer(_Auto): ...
class AutoModelForCausalLM(_Auto): ...
class AutoModelForImageTextToText(_Auto): ...
