"""Thoughts before an answer (`reasoning_content` of a message): where a chat template has a place for them."""

from trainer.data.content import Message, for_template
from trainer.data.tokenizer import Tokenizer, remembered

# The names under which templates read them.
FIELDS = ("reasoning_content", "reasoning", "thinking")
# The prompt of some bases begins the thoughts, and the template leaves those of answers out.
BEGUN = "<think>"
_PROBE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
_THOUGHT = "This is how it is thought."


def place_of(tokenizer: Tokenizer) -> str | None:
    """The field of a message in which the chat template reads thoughts; BEGUN if the prompt begins them; None if the
    template has no place for them. Cached on the tokenizer.
    """
    return remembered(tokenizer, "_thoughts_place", lambda: _find_place(tokenizer))


def _find_place(tokenizer: Tokenizer) -> str | None:
    template = str(getattr(tokenizer, "chat_template", None))
    for field in FIELDS:
        if field in template and _THOUGHT in _rendered(tokenizer, field):
            return field
    return BEGUN if BEGUN in template and _rendered(tokenizer).rstrip().endswith(BEGUN) else None


def _rendered(tokenizer: Tokenizer, field: str | None = None) -> str:
    """A conversation whose answer has a thought in that field; without a field, its prompt."""
    sight = getattr(tokenizer, "sight", None)
    messages = [
        {**message, "content": for_template(message["content"], bool(sight) and sight.parts_only)} for message in _PROBE
    ]
    if field:
        messages[1][field] = _THOUGHT
    try:
        return tokenizer.apply_chat_template(
            messages if field else messages[:1], tokenize=False, add_generation_prompt=not field
        )
    except Exception:
        # Templates refuse what they do not take with errors of many types; rows are refused where they are rendered.
        return ""


def thoughts_and_answer(message: Message) -> tuple[str, str]:
    """The thoughts of an answer, in its field or written before it, and the answer alone."""
    content = message["content"]
    if "reasoning_content" in message:
        return message["reasoning_content"].strip("\n"), content.strip()
    thoughts, end, answer = content.rpartition("</think>")
    if not end:
        return "", content.strip()
    return thoughts.partition(BEGUN)[2 if BEGUN in thoughts else 0].strip("\n"), answer.strip()


def are_lost(messages: list[Message], tokenizer: Tokenizer) -> bool:
    """Whether the conversation has thoughts that would be learned, had the template a place for them."""
    return place_of(tokenizer) is None and any(
        "reasoning_content" in message and message.get("weight", 1) != 0 for message in messages
    )
