"""What the trainer needs of a base's tokenizer."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainer.data.content import Message

if TYPE_CHECKING:
    from trainer.data.sight import Sight

Found = TypeVar("Found")

# What converters of some families read beside tokenizer.json; transformers does not write it.
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model")


class Tokenizer(Protocol):
    """The part of transformers' PreTrainedTokenizerFast that the trainer uses, and what load_tokenizer adds to it:
    `parse_control_tokens`, whether control tokens spelled in the text of a row are parsed as control tokens, and
    `sight`, how the base sees pictures (None: it reads text alone).

    Functions that cache what they find out about a tokenizer keep it in an attribute of it (`remembered`).
    """

    parse_control_tokens: bool
    sight: "Sight | None"
    chat_template: Any
    eos_token: Any
    eos_token_id: Any
    unk_token_id: Any
    pad_token_id: Any
    all_special_tokens: list[str]
    added_tokens_decoder: Mapping[int, Any]
    # tokenizers.Tokenizer.
    backend_tokenizer: Any

    def __call__(self, text: Any, **options: Any) -> Mapping[str, Any]:
        """The text's token ids (`input_ids`), and with return_offsets_mapping=True the characters of each."""
        ...

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any:
        """The conversation as text (tokenize=False) or token ids. Raises what the template raises."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...

    def save_pretrained(self, save_directory: Any) -> Any: ...

    def get_vocab(self) -> dict[str, int]: ...


def remembered(tokenizer: Tokenizer, name: str, find: Callable[[], Found]) -> Found:
    """What `find` returned at the first call for the tokenizer with its chat template, under `name`."""
    template, attributes = getattr(tokenizer, "chat_template", None), vars(tokenizer)
    empty: tuple[Any, dict[str, Any]] = (template, {})
    found_with, found = attributes.setdefault("_remembered", empty)
    if found_with is not template:
        found_with, found = attributes["_remembered"] = empty
    if name not in found:
        found[name] = find()
    return found[name]


def special_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The texts of special tokens, the longest first: also those without a named purpose, as Gemma's end of turn."""
    return remembered(tokenizer, "_special_texts", lambda: _find_special_texts(tokenizer))


def _find_special_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return tuple(sorted({*tokenizer.all_special_tokens, *added} - {""}, key=len, reverse=True))
