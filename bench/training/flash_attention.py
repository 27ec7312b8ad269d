"""FlashAttention-2 for packed rows, with the kernels that torch brings: the package `flash-attn` has no wheels for
current releases of torch. For the peers; our own attention is `trainer/model/attention.py`.
"""

import inspect

from torch.nn.attention import varlen
from torch.nn.attention.varlen import varlen_attn

NAME = "torch_flash"
# Releases of torch before 2.12 support fewer key heads without this flag.
NEEDS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Shapes: query [1, heads, tokens, size], key and value [1, key heads, tokens, size]; returns [1, tokens, heads,
    size].
    """
    q, k, v = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    ends, longest = kwargs["cu_seq_lens_q"], int(kwargs["max_length_q"])
    gqa = {"enable_gqa": q.shape[1] != k.shape[1]} if NEEDS_GQA else {}
    return varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=(-1, 0), **gqa)[None], None


def use(model) -> None:
    from transformers import AttentionInterface

    # transformers builds no mask for an attention name that it has no mask function for.
    AttentionInterface.register(NAME, attention)
    model.config._attn_implementation = NAME


def with_gqa(*args, window_size=(-1, -1), enable_gqa=False, **options):
    return varlen_attn(*args, window_size=window_size, **options)


# Unsloth takes torch's function only if it has that flag.
if not NEEDS_GQA:
    varlen.varlen_attn = with_gqa
