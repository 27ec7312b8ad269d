# The names that the trainer takes from the top of transformers, for pyright alone. The package itself imports its
# hundreds of models there, which doubles the time of the check. Everything else is found in the package.
from transformers.masking_utils import AttentionMaskInterface as AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING as CONFIG_MAPPING
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import AutoModelForImageTextToText as AutoModelForImageTextToText
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig
