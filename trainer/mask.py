"""Which characters of a rendered conversation the model has to learn: the assistant's words and the end token after each."""

from trainer.errors import JobError

Span = tuple[int, int]


def render(messages: list[dict], tokenizer, open_turn: bool = False) -> str:
    """The conversation as the model's own chat template writes it; `open_turn` adds the beginning of an assistant's turn."""
    if not messages:
        return ""
    # A template sees what serving will show it: no fields of training.
    shown = [{"role": message["role"], "content": message["content"]} for message in messages]
    try:
        return tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=open_turn)
    except Exception as problem:
        # Templates refuse what they do not know (a system message, two users in a row) with errors of many kinds.
        raise JobError("dataset_invalid", f"The model's chat template does not take a row: {problem}") from problem


def spans_of(messages: list[dict], tokenizer) -> list[tuple[str, list[Span]]]:
    """Texts to train on, each with the character spans `[begin, end)` that the loss counts.

    One text for the whole conversation where the template only ever appends. A template that renders an earlier turn otherwise
    once another follows (some drop an earlier turn's reasoning) gives one text for each assistant turn, as serving would see it.
    """
    whole = render(messages, tokenizer)
    spans = []
    for index, message in enumerate(messages):
        if not learned(message):
            continue
        before = render(messages[:index], tokenizer, open_turn=True)
        after = render(messages[: index + 1], tokenizer)
        if not (whole.startswith(before) and whole.startswith(after) and after.startswith(before)):
            return [_one_turn(messages[: index + 1], tokenizer) for index, turn in enumerate(messages) if learned(turn)]
        spans.append((len(before), _end_of_turn(after, len(before), tokenizer)))
    return [(whole, spans)]


def learned(message: dict) -> bool:
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def _one_turn(messages: list[dict], tokenizer) -> tuple[str, list[Span]]:
    before = render(messages[:-1], tokenizer, open_turn=True)
    text = render(messages, tokenizer)
    if not text.startswith(before):
        # The prompt that serving makes is not the beginning of the rendered turn: put the answer after that prompt instead.
        content = messages[-1]["content"].strip()
        at = text.rfind(content)
        if not content or at < 0:
            raise JobError("dataset_invalid", "The model's chat template does not show an assistant's message as it was written.")
        text = before + text[at:]
    return text, [(len(before), _end_of_turn(text, len(before), tokenizer))]


def _end_of_turn(text: str, begin: int, tokenizer) -> int:
    """Where the turn ends for a model that stops at its end token: the whitespace that templates put after it is never generated."""
    stripped = text[begin:].rstrip()
    ends_with_special = any(stripped.endswith(token) for token in tokenizer.all_special_tokens)
    return begin + len(stripped) if ends_with_special else len(text)
