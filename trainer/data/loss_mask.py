"""Which characters of a rendered conversation the loss counts: the assistant's text and the end token after each
answer.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from trainer.data.content import Content, Message, for_template, pictures_of
from trainer.data.control_text import REFUSAL, REFUSAL_OF_TOOLS, Rendering, View, ViewDiffers, control_text
from trainer.data.ends import end_of_answer, ends_of
from trainer.data.sight import Sight
from trainer.data.thoughts import BEGUN, SETTINGS, end_of_begun, place_of, put_thoughts, thoughts_and_answer
from trainer.data.tokenizer import Tokenizer, remembered
from trainer.data.tools import adapted, texts_of, uses_tools
from trainer.runtime.errors import JobError

# Each turn is rendered with everything before it. Longer conversations render only the turns that fit into the length.
MANY_MESSAGES = 64


REFUSAL_OF_PICTURES = (
    "The row has a picture, and this base reads text alone. Choose a base that sees, or remove the pictures from the "
    "rows."
)

# The mark that begins thoughts, at the end of a prompt.
OPENING = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])\s*\Z")

# The fields of a message that templates read, the same as in serving.
TEMPLATE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")


def render(
    messages: list[Message],
    tokenizer: Tokenizer,
    open_turn: bool = False,
    tools: list[dict[str, Any]] | None = None,
    settings: dict[str, Any] | None = None,
) -> str:
    """Renders a conversation with the model's chat template and its variables `settings`; `open_turn` opens an
    assistant's turn at the end. Raises JobError("dataset_invalid") if the template does not take it.
    """
    if not messages:
        return ""
    fields = [{name: message[name] for name in TEMPLATE_FIELDS if name in message} for message in messages]
    for shown, message in zip(fields, messages, strict=True):
        shown["content"] = _as_read(shown["content"], tokenizer)
        if "reasoning_content" in message:
            put_thoughts(shown, message["reasoning_content"], tokenizer)
    options = {**(settings or {}), **({"tools": tools} if tools else {})}
    try:
        return tokenizer.apply_chat_template(fields, tokenize=False, add_generation_prompt=open_turn, **options)
    except Exception as problem:
        # Templates refuse unsupported input (a system message, two user messages in a row) with errors of many types.
        raise JobError("dataset_invalid", f"The model's chat template does not take a row: {problem}") from problem


def _sight_of(tokenizer: Tokenizer) -> Sight | None:
    return getattr(tokenizer, "sight", None)


def _as_read(content: Content, tokenizer: Tokenizer) -> Content:
    """A message's content in the form that the tokenizer's chat template reads."""
    sight = _sight_of(tokenizer)
    return for_template(content, bool(sight) and sight.parts_only)


def rendering(
    messages: list[Message], tokenizer: Tokenizer, open_turn: bool = False, settings: dict[str, Any] | None = None
) -> Rendering:
    """Renders a whole conversation with its tools, or a prompt, for tokenizing. Raises JobError("dataset_invalid") if
    text cannot be distinguished from control tokens, or the template writes no tools.
    """
    messages, tools = _with_tools(messages, tokenizer)
    return _first_view(
        messages,
        tokenizer,
        lambda view: [_rendering(view.render(len(messages), open_turn), [], view, len(messages), tokenizer)],
        tools,
        settings,
    )[0]


def _with_tools(messages: list[Message], tokenizer: Tokenizer) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages as the template takes them, and their tools."""
    tools = getattr(messages, "tools", None)
    return adapted(messages, tools, tokenizer) if uses_tools(messages, tools) else (messages, tools)


def token_ids(
    messages: list[Message], tokenizer: Tokenizer, open_turn: bool = False, settings: dict[str, Any] | None = None
) -> list[int]:
    """The tokens of a conversation without pictures, the same in training, serving and the checks of exports."""
    ((ids, _, _),) = control_text(tokenizer).encode([rendering(messages, tokenizer, open_turn, settings)])
    return ids


def prompt_ids(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """A prompt's tokens as any user of the tokenizer's folder gets them. If the prompt spells control tokens, as in
    training.
    """
    if rendering(messages, tokenizer, open_turn=True).mark is not None:
        return token_ids(messages, tokenizer, open_turn=True)
    shown = [{**message, "content": _as_read(message["content"], tokenizer)} for message in messages]
    encoded = tokenizer.apply_chat_template(shown, add_generation_prompt=True, tokenize=True, return_dict=True)
    return [int(token) for token in encoded["input_ids"]]


def counted_renderings(messages: list[Message], tokenizer: Tokenizer, max_tokens: int | None = None) -> list[Rendering]:
    """The texts of `training_renderings`, without the spans where these are not needed to tell them: for counting."""
    turns = sum(message["role"] == "assistant" for message in messages)
    asks = any(_settings_of(message, tokenizer) for message in messages)
    if learned(messages[-1]) and turns <= _turns_as_a_whole(tokenizer) and not asks:
        return [rendering(messages, tokenizer)]
    return training_renderings(messages, tokenizer, max_tokens)


def _turns_as_a_whole(tokenizer: Tokenizer) -> float:
    """How many answers of a conversation the template renders as one text to train on: none, one, or any number."""
    return remembered(tokenizer, "_turns_whole", lambda: _find_turns_as_a_whole(tokenizer))


def _find_turns_as_a_whole(tokenizer: Tokenizer) -> float:
    whole = 0
    system = {"role": "system", "content": "Be a probe."}
    probe = [{"role": role, "content": f"{role} speaks."} for role in ("user", "assistant") * 2]
    for turns, answers in ((1, 1), (2, math.inf)):
        talk = probe[: 2 * turns]
        # Templates that take no system message refuse the rows that have one.
        if not _is_whole(talk, tokenizer, False) or not _is_whole([system, *talk], tokenizer, True):
            break
        whole = answers
    return whole


def _is_whole(messages: list[Message], tokenizer: Tokenizer, if_refused: bool) -> bool:
    try:
        texts = training_renderings(messages, tokenizer)
        return [turn.text for turn in texts] == [rendering(messages, tokenizer).text]
    except JobError:
        return if_refused


def training_renderings(
    messages: list[Message], tokenizer: Tokenizer, max_tokens: int | None = None
) -> list[Rendering]:
    """The texts to train on, each with the character spans `[begin, end)` that the loss counts.

    One text for the whole conversation if the template only appends. Some templates render earlier turns differently
    once another follows (they drop earlier reasoning); they give one text for each assistant turn, as in serving. In a
    conversation with many messages, turns that start after the first `max_tokens` are left out, except the first such
    turn. Answers with thoughts follow a prompt that asks for them, where the template's default is to ask for none.
    """
    messages, tools = _with_tools(messages, tokenizer)
    settings = [_settings_of(message, tokenizer) if learned(message) else None for message in messages]
    found: list[Rendering] = []
    for asked in [{}] if all(each is None for each in settings) else _different(settings):
        # The answers to other prompts are learned from texts of their own.
        part = [
            message if each is None or each == asked else {**message, "weight": 0}
            for message, each in zip(messages, settings, strict=True)
        ]
        found += _renderings_as(part, tokenizer, max_tokens, tools, asked)
    return sorted(found, key=lambda each: each.spans[0][0] if each.spans else 0)


def _different(settings: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    different: list[dict[str, Any]] = []
    for each in settings:
        if each is not None and each not in different:
            different.append(each)
    return different


def _renderings_as(
    messages: list[Message],
    tokenizer: Tokenizer,
    max_tokens: int | None,
    tools: list[dict[str, Any]] | None,
    settings: dict[str, Any],
) -> list[Rendering]:
    """The texts to train on, rendered with the template's variables `settings`."""
    bound = max_tokens if len(messages) > MANY_MESSAGES else None
    max_characters = _characters(messages, tokenizer, bound, tools, settings) if bound else None
    return _first_view(
        messages, tokenizer, lambda view: _view_renderings(view, tokenizer, max_characters), tools, settings
    )


def _settings_of(message: Message, tokenizer: Tokenizer) -> dict[str, Any]:
    """The template's variables of a prompt that asks for a learned answer as it is; none but where it has thoughts."""
    if not learned(message) or not message.get("reasoning_content", "").strip():
        return {}
    return thinking_settings(tokenizer, "tool_calls" in message) or {}


def _characters(
    messages: list[Message],
    tokenizer: Tokenizer,
    tokens: int,
    tools: list[dict[str, Any]] | None,
    settings: dict[str, Any],
) -> int | None:
    """An upper bound of the characters in the first `tokens` tokens of the rendered conversation; None if they are all
    of it.
    """
    text = render(messages, tokenizer, tools=tools, settings=settings)
    # Parsing control tokens never gives more tokens than encoding them as text.
    ((ids, offsets, _),) = control_text(tokenizer).encode([Rendering(text, [])], tokens)
    return offsets[tokens][1] if len(ids) > tokens else None


def _first_view(
    messages: list[Message],
    tokenizer: Tokenizer,
    make: Callable[[View], list[Rendering]],
    tools: list[dict[str, Any]] | None = None,
    settings: dict[str, Any] | None = None,
) -> list[Rendering]:
    controls = control_text(tokenizer)
    if pictures_of(messages) and not _sight_of(tokenizer):
        raise JobError("dataset_invalid", REFUSAL_OF_PICTURES)
    if controls.spelled_in(texts_of(messages, tools)):
        raise JobError("dataset_invalid", REFUSAL_OF_TOOLS)
    sight = _sight_of(tokenizer)
    for view in controls.views(messages, lambda part, open_turn: render(part, tokenizer, open_turn, tools, settings)):
        try:
            return make(view if sight is None else _completed(view, sight))
        except ViewDiffers:
            continue
    raise JobError("dataset_invalid", REFUSAL)


def _completed(view: View, sight: Sight) -> View:
    def complete(count: int, open_turn: bool) -> str:
        return sight.complete(view.render(count, open_turn))

    return view._replace(render=complete)


def _view_renderings(view: View, tokenizer: Tokenizer, max_characters: int | None) -> list[Rendering]:
    messages = view.messages
    whole = view.render(len(messages), False)
    if messages and learned(messages[-1]):
        whole = _ended(whole, messages[-1], tokenizer)
    end = end_of_begun(tokenizer)
    spans: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if not learned(message):
            continue
        before = _before(view, index)
        after = _ended(view.render(index + 1, False), message, tokenizer)
        if not (whole.startswith(before) and whole.startswith(after) and after.startswith(before)):
            return _turn_renderings(view, tokenizer, max_characters)
        if _is_unended(after, before, end):
            return _turn_renderings(view, tokenizer, max_characters)
        spans.append((len(before), _end_of_turn(after, len(before), tokenizer)))
        if _is_beyond(view, before, max_characters):
            break
    return [_rendering(whole, spans, view, len(messages), tokenizer)]


def _before(view: View, index: int) -> str:
    """The text before an assistant's message: what comes before it, and the opening of its turn.

    Templates need not take an empty conversation, and some write a system text of their own before the first message:
    the opening of the first turn is found in the text with the message.
    """
    if index > 0:
        return view.render(index, True)
    after, opened = view.render(1, False), view.render(1, True)
    opening = opened[len(after) :] if opened.startswith(after) else ""
    # Some open a turn with more than they write into one that has ended, such as the mark where thoughts begin.
    for length in range(len(opening), len(opening) // 2, -1):
        if (at := after.find(opening[:length])) >= 0:
            return after[:at] + opening
    return ""


def _turn_renderings(view: View, tokenizer: Tokenizer, max_characters: int | None) -> list[Rendering]:
    turns: list[Rendering] = []
    for index, message in enumerate(view.messages):
        if learned(message):
            turns.append(_turn_rendering(view, index, tokenizer))
            if _is_beyond(view, turns[-1].text[: turns[-1].spans[0][0]], max_characters):
                break
    return turns


def _is_beyond(view: View, before: str, max_characters: int | None) -> bool:
    return max_characters is not None and len(before) - (before.count(view.mark) if view.mark else 0) > max_characters


def loses_thoughts(messages: list[Message], tokenizer: Tokenizer) -> bool:
    """Whether answers of the conversation have thoughts that are not learned: the template has no place for them."""
    return any(
        "reasoning_content" in message
        and learned(message)
        and thinking_settings(tokenizer, "tool_calls" in message) is None
        for message in messages
    )


def thinking_settings(tokenizer: Tokenizer, before_calls: bool) -> dict[str, Any] | None:
    """The template's variables with which thoughts before an answer, or before calls, are learned: {} where these are
    its defaults, None where none are found. Cached on the tokenizer.
    """
    return remembered(
        tokenizer, f"_thinking_settings_{before_calls}", lambda: _find_thinking_settings(tokenizer, before_calls)
    )


def _find_thinking_settings(tokenizer: Tokenizer, before_calls: bool) -> dict[str, Any] | None:
    if place_of(tokenizer) is None:
        return None
    answer: Message = {"role": "assistant", "content": "Zq answers.", "reasoning_content": "Zq thinks."}
    if before_calls:
        call = {"id": "zqcall000", "type": "function", "function": {"name": "zq", "arguments": "{}"}}
        answer |= {"content": "", "tool_calls": [call]}
    messages, tools = _with_tools([{"role": "user", "content": "Zq asks."}, answer], tokenizer)

    def are_learned(settings: dict[str, Any]) -> bool:
        try:
            (turn,) = _renderings_as(messages, tokenizer, None, tools, settings)
        except JobError:
            # The row itself is refused.
            return True
        return "Zq thinks." in turn.text[turn.spans[0][0] :]

    return next(filter(are_learned, SETTINGS), None)


def learned(message: Message) -> bool:
    """Whether the loss counts a message: an answer whose weight is not 0."""
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def _turn_rendering(view: View, index: int, tokenizer: Tokenizer) -> Rendering:
    before = _before(view, index)
    text = _ended(view.render(index + 1, False), view.messages[index], tokenizer)
    thoughts, content = thoughts_and_answer(view.messages[index])
    begun, end = place_of(tokenizer) == BEGUN, end_of_begun(tokenizer)
    if not begun and not thoughts:
        text = _closed(text, before, end)
    if not text.startswith(before) or (begun and _is_unended(text, before, end)):
        # The serving prompt is not a prefix of the rendered turn: append the answer to that prompt instead.
        if not begun:
            content = view.messages[index]["content"].strip()
        # The end token may spell what is answered.
        shown = text.rstrip()
        end_token = next((each for each in ends_of(tokenizer) if shown.endswith(each)), "")
        at = text.rfind(content, 0, len(shown) - len(end_token))
        if not content or at < 0:
            raise JobError(
                "dataset_invalid", "The model's chat template does not show an assistant's message as it was written."
            )
        text = before + (f"{thoughts}{end}" if begun else "") + text[at:]
    spans = [(len(before), _end_of_turn(text, len(before), tokenizer))]
    return _rendering(text, spans, view, index + 1, tokenizer)


def _rendering(text: str, spans: list[tuple[int, int]], view: View, count: int, tokenizer: Tokenizer) -> Rendering:
    """The rendering of a view's first messages, as many as `count` says."""
    sight, pictures = _sight_of(tokenizer), pictures_of(view.messages[:count])
    if sight:
        sight.require_shown(text, pictures)
    return Rendering(text, spans, view.mark, tuple(pictures))


def _is_unended(text: str, before: str, end: str | None) -> bool:
    """Whether a prompt begins thoughts that do not end in the turn."""
    return end is not None and bool(OPENING.search(before)) and end.strip() not in text[len(before) :]


def _closed(text: str, before: str, end: str | None) -> str:
    """A turn whose prompt begins thoughts, where the template writes an answer without any: they end at once, as the
    template ends them or else with `end`. The answer would be learned as a thought, and be served as one.
    """
    opening = OPENING.search(before)
    if end is None or not opening or not text.startswith(before[: opening.start()]):
        return text
    rest = text[len(before) if text.startswith(before) else opening.start() :]
    rest = rest.removeprefix(opening[1])
    if rest.lstrip().startswith(end.strip()):
        return before + rest
    # What comes before an answer may be a part of the end.
    both = next(start for start in range(len(end) + 1) if rest.startswith(end[start:]))
    return before + end[:both] + rest


def _ended(text: str, answer: Message, tokenizer: Tokenizer) -> str:
    """A rendering that ends with an answer, with the token that ends it."""
    if text.rstrip().endswith(ends_of(tokenizer)):
        return text
    end = end_of_answer(tokenizer, answer)
    return text.removesuffix(end.instead) + end.text if end.added else text


def _end_of_turn(text: str, begin: int, tokenizer: Tokenizer) -> int:
    """The end of the turn, without the whitespace that templates put after the end token: a model stops before it."""
    stripped = text[begin:].rstrip()
    return begin + len(stripped) if stripped.endswith(ends_of(tokenizer)) else len(text)
