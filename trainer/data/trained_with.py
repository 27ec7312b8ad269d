"""What the rows of a training have in common. A model that is asked otherwise acts as if it was not trained."""

from dataclasses import dataclass, field
from typing import Any

from trainer.data.content import Message, text_of
from trainer.data.loss_mask import learned, thinking_settings
from trainer.data.thoughts import place_of
from trainer.data.tokenizer import Tokenizer


@dataclass
class Common:
    """Collects it row by row, and keeps no more than two different system prompts."""

    system_prompts: set[str | None] = field(default_factory=set[str | None])
    with_tools: set[bool] = field(default_factory=set[bool])
    # Whether an answer thinks, and whether it has calls.
    with_thoughts: set[tuple[bool, bool]] = field(default_factory=set[tuple[bool, bool]])

    def add(self, messages: list[Message]) -> None:
        """Adds a row, or the chosen answer of a pair."""
        first = messages[0]
        if len(self.system_prompts) < 2:
            self.system_prompts.add(text_of(first["content"]) if first["role"] == "system" else None)
        self.with_tools.add(bool(getattr(messages, "tools", None)))
        self.with_thoughts |= {(_thinks(message), "tool_calls" in message) for message in messages if learned(message)}

    def as_data(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """For the `result` line: TrainedWith of contract/models.ts, without the template."""
        prompts = self.system_prompts
        settings = self._settings(tokenizer)
        only = next(iter(prompts)) if len(prompts) == 1 else None
        return {
            "system_prompt": "varies" if len(prompts) != 1 else "none" if only is None else "same",
            "system_prompt_text": only,
            "tools": _share(self.with_tools),
            "thoughts": None if place_of(tokenizer) is None else _share({each is not None for each in settings}),
            "thoughts_asked": any(settings),
        }

    def asked_with(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The template's variables of a prompt that asks for an answer as the rows did: its defaults, unless all
        answers have thoughts.
        """
        settings = self._settings(tokenizer)
        return (None not in settings and next(filter(None, settings), None)) or {}

    def _settings(self, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
        """The variables with which thoughts before answers, then before calls, are asked for; None for answers without
        any. The trainer leaves out those of a field that the template does not show.
        """
        return [thinking_settings(tokenizer, calls) if said else None for said, calls in sorted(self.with_thoughts)]


def _thinks(message: Message) -> bool:
    return bool(message.get("reasoning_content", "").strip()) or "</think>" in text_of(message["content"])


def _share(seen: set[bool]) -> str:
    return "some" if len(seen) != 1 else "all" if True in seen else "none"
