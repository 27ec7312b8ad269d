"""Pictures of rows: data URLs in content parts, replaced by what identifies them while a row is read."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.runtime.errors import JobError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
# As in the service (pictures/formats.ts).
MOST_PIXELS = 50_000_000


@dataclass(frozen=True)
class Place:
    """Where a picture is: the line of a file that starts at `offset` bytes, and its index among the line's pictures."""

    path: Path
    offset: int
    index: int


@dataclass(frozen=True)
class Picture:
    """`sha256`: of its file. `width`, `height`: in pixels, upright. `place`: None if only its size is needed."""

    sha256: str
    width: int
    height: int
    place: Place | None = field(default=None, compare=False)


class PictureError(ValueError):
    """A picture that cannot be read; the message says why, as part of a sentence."""


def file_of(url: object) -> bytes:
    """The file in a data URL. Raises PictureError."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise PictureError("its url is not a data URL (data:image/png;base64,…)")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as problem:
        raise PictureError("its data is not base64") from problem


def _open(file: bytes):
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(file), formats=FORMATS)
    # Pillow's readers fail with errors of many types.
    except Exception as problem:
        raise PictureError("it is no JPEG, PNG, WEBP or GIF") from problem
    if image.width * image.height > MOST_PIXELS:
        raise PictureError(f"it has {image.width} x {image.height} pixels, more than {MOST_PIXELS // 10**6} million")
    return image


def size_of(file: bytes) -> tuple[int, int]:
    """Width and height, upright, from the file's header. Raises PictureError."""
    image = _open(file)
    # Orientations 5 to 8 are turned by a quarter.
    turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)


def decode(file: bytes):
    """The picture as a PIL image in RGB: the first frame, upright, transparent parts on white. Raises PictureError."""
    from PIL import Image, ImageOps

    image = _open(file)
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            # 16 bits of grey; Pillow would cut off what is brighter than 255.
            image = image.convert("I").point(lambda value: value / 257).convert("L")
        if "A" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            background = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(background, image)
        return image.convert("RGB")
    except Exception as problem:
        raise PictureError(f"it is damaged ({problem})") from problem


def take_out(row: dict[str, Any] | list[dict[str, Any]], place: tuple[Path, int] | None) -> None:
    """Replaces the `image_url` parts of a canonical row, or of messages, by parts of the type `image` with a Picture.
    `place`: the row's file and the offset of its line. Raises PictureError.
    """
    for index, part in enumerate(_parts_in(row)):
        file = file_of(part["image_url"]["url"])
        width, height = size_of(file)
        where = Place(*place, index) if place else None
        part.clear()
        part |= {"type": "image", "picture": Picture(hashlib.sha256(file).hexdigest(), width, height, where)}


def read(picture: Picture) -> bytes:
    """The picture's file. Raises JobError("dataset_invalid") if it is no longer in its place."""
    return file_of(url_of(picture))


def url_of(picture: Picture) -> str:
    """The data URL of the row. Raises JobError("dataset_invalid") if it is no longer in its place."""
    place = picture.place
    assert place, "a picture of no file cannot be read"
    with place.path.open("rb") as rows:
        rows.seek(place.offset)
        row = json.loads(rows.readline().removeprefix(b"\xef\xbb\xbf"))
    part = list(_parts_in(row))[place.index]
    url = part["image_url"]["url"]
    if hashlib.sha256(file_of(url)).hexdigest() != picture.sha256:
        raise JobError("dataset_invalid", "The dataset's file has changed while it was read.")
    return url


def files_in(row: list[dict[str, Any]]) -> list[bytes]:
    """The files of a row's pictures, in their order. Raises PictureError."""
    return [file_of(part["image_url"]["url"]) for part in _parts_in(row)]


def _parts_in(row: dict[str, Any] | list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every part with a picture in the messages of a row, or in a list of messages, in their order."""
    messages = row if isinstance(row, list) else [*row.get("messages", []), *row.get("prompt", [])]
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part for part in message["content"] if part["type"] == "image_url")
