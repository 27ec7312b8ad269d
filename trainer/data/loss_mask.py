"""Which characters of a rendered conversation the model has to learn: the assistant's words and the end token after
each.
"""

from trainer.data.control_text import REFUSAL, Rendering, View, ViewDiffers, control_text
from trainer.runtime.errors import JobError

# Each turn is rendered with all that comes before it: of so many messages, only those that can be learned from.
MANY_MESSAGES = 64


def render(messages: list[dict], tokenizer, open_turn: bool = False) -> str:
    """The conversation as the model's own chat template writes it; `open_turn` adds the beginning of an assistant's
    turn.
    """
    if not messages:
        return ""
    # A template sees what serving will show it: no fields of training.
    shown = [{"role": message["role"], "content": message["content"]} for message in messages]
    try:
        return tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=open_turn)
    except Exception as problem:
        # Templates refuse what they do not know (a system message, two users in a row) with errors of many kinds.
        raise JobError("dataset_invalid", f"The model's chat template does not take a row: {problem}") from problem


def rendering(messages: list[dict], tokenizer, open_turn: bool = False) -> Rendering:
    """A whole conversation, or a prompt, ready to be tokenized. Raises JobError("dataset_invalid") where what is text cannot be told."""
    return _first_view(messages, tokenizer, lambda view: [Rendering(view.render(len(messages), open_turn), [], view.mark)])[0]


def token_ids(messages: list[dict], tokenizer, open_turn: bool = False) -> list[int]:
    """The tokens of a conversation, as training, serving and the checks of exports have them."""
    ((ids, _, _),) = control_text(tokenizer).encode([rendering(messages, tokenizer, open_turn)])
    return ids


def prompt_ids(tokenizer, messages: list[dict]) -> list[int]:
    """A prompt's tokens as anybody makes them who has the tokenizer's folder; where it spells control tokens, as
    training has them.
    """
    if rendering(messages, tokenizer, open_turn=True).mark is not None:
        return token_ids(messages, tokenizer, open_turn=True)
    told = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    return [int(token) for token in told["input_ids"]]


def spans_of(messages: list[dict], tokenizer, most_tokens: int | None = None) -> list[Rendering]:
    """Texts to train on, each with the character spans `[begin, end)` that the loss counts.

    One text for the whole conversation where the template only ever appends. A template that renders an earlier turn
    otherwise
    once another follows (some drop an earlier turn's reasoning) gives one text for each assistant turn, as serving
    would see it.
    Of a conversation of many messages, turns that begin beyond the first `most_tokens` are left out, but for the first
    of them.
    """
    most = _characters(messages, tokenizer, most_tokens) if most_tokens and len(messages) > MANY_MESSAGES else None
    return _first_view(messages, tokenizer, lambda view: _spans_in(view, tokenizer, most))


def _characters(messages: list[dict], tokenizer, tokens: int) -> int | None:
    """How many characters of the rendered conversation these first tokens are, at most; None for all."""
    text = render(messages, tokenizer)
    # As control tokens, what the row spells has no more tokens than as text.
    ((ids, offsets, _),) = control_text(tokenizer).encode([Rendering(text, [])], tokens)
    return offsets[tokens][1] if len(ids) > tokens else None


def _first_view(messages: list[dict], tokenizer, make) -> list[Rendering]:
    for view in control_text(tokenizer).views(messages, lambda some, open_turn: render(some, tokenizer, open_turn)):
        try:
            return make(view)
        except ViewDiffers:
            continue
    raise JobError("dataset_invalid", REFUSAL)


def _spans_in(view: View, tokenizer, most: int | None) -> list[Rendering]:
    messages = view.messages
    whole = view.render(len(messages), False)
    spans = []
    for index, message in enumerate(messages):
        if not learned(message):
            continue
        before = view.render(index, True)
        after = view.render(index + 1, False)
        if not (whole.startswith(before) and whole.startswith(after) and after.startswith(before)):
            return _turns_in(view, tokenizer, most)
        spans.append((len(before), _end_of_turn(after, len(before), tokenizer)))
        if _is_beyond(view, before, most):
            break
    return [Rendering(whole, spans, view.mark)]


def _turns_in(view: View, tokenizer, most: int | None) -> list[Rendering]:
    turns = []
    for index, message in enumerate(view.messages):
        if learned(message):
            turns.append(_one_turn(view, index, tokenizer))
            if _is_beyond(view, turns[-1].text[: turns[-1].spans[0][0]], most):
                break
    return turns


def _is_beyond(view: View, before: str, most: int | None) -> bool:
    return most is not None and len(before) - (before.count(view.mark) if view.mark else 0) > most


def learned(message: dict) -> bool:
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def _one_turn(view: View, index: int, tokenizer) -> Rendering:
    before = view.render(index, True)
    text = view.render(index + 1, False)
    if not text.startswith(before):
        # The prompt that serving makes is not the beginning of the rendered turn: put the answer after that prompt
        # instead.
        content = view.messages[index]["content"].strip()
        at = text.rfind(content)
        if not content or at < 0:
            raise JobError("dataset_invalid", "The model's chat template does not show an assistant's message as it was written.")
        text = before + text[at:]
    return Rendering(text, [(len(before), _end_of_turn(text, len(before), tokenizer))], view.mark)


def _end_of_turn(text: str, begin: int, tokenizer) -> int:
    """Where the turn ends for a model that stops at its end token: the whitespace that templates put after it is never
    generated.
    """
    stripped = text[begin:].rstrip()
    ends_with_special = any(stripped.endswith(token) for token in tokenizer.all_special_tokens)
    return begin + len(stripped) if ends_with_special else len(text)
