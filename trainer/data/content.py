"""Contents of messages: a text, or parts of text and pictures in their order.

Parts are `{"type": "text", "text": …}` and `{"type": "image", "picture": Picture}`. Only messages that are not the
assistant's have them, and only where there is a picture.
"""

from collections.abc import Callable
from typing import Any

from trainer.data.pictures import Picture, url_of

Content = str | list[dict[str, Any]]
# A message with the fields that training and templates read.
Message = dict[str, Any]


def texts_in(content: Content) -> list[str]:
    """The texts of a message's content, without its pictures."""
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def text_of(content: Content) -> str:
    """A message's text as one string, without its pictures."""
    return "".join(texts_in(content))


def with_texts(content: Content, change: Callable[[str], str]) -> Content:
    """The content with each of its texts changed."""
    if isinstance(content, str):
        return change(content)
    return [{**part, "text": change(part["text"])} if part["type"] == "text" else part for part in content]


def pictures_of(messages: list[Message]) -> list[Picture]:
    """The pictures of a conversation, in order."""
    return [
        part["picture"]
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image"
    ]


def for_template(content: Content, parts_only: bool) -> Content:
    """The content as chat templates read it. `parts_only`: the template reads no plain texts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if parts_only else content
    return [{"type": "image"} if part["type"] == "image" else part for part in content]


def as_sent(content: Content) -> Content:
    """The content as a client sends it: pictures as data URLs."""
    if isinstance(content, str):
        return content
    return [
        {"type": "image_url", "image_url": {"url": url_of(part["picture"])}} if part["type"] == "image" else part
        for part in content
    ]
