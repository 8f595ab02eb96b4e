"""Images and files as parts of a Gemini content.

Pure. Bytes stand in the request only: what is stored of a part that held some can't be sent back.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from roder_trio.schema.transcript import Image

_KINDS = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "webp": "webp", "gif": "gif", "heic": "heic", "heif": "heif"}
"""What a URL's ending says of the image behind it."""


def image_part(image: Image) -> dict[str, Any]:
    """Return the part that shows an image: its bytes, or where they are."""
    if not image.url.startswith("data:"):
        kind = _KINDS.get(urlsplit(image.url).path.rpartition(".")[2].lower())
        return {"fileData": {**({"mimeType": f"image/{kind}"} if kind else {}), "fileUri": image.url}}
    head, _, data = image.url.removeprefix("data:").partition(",")
    mime_type, *options = head.split(";")
    if "base64" not in options:
        data = b64encode(unquote_to_bytes(data)).decode()
    return {"inlineData": {"mimeType": mime_type or "text/plain", "data": data}}


def without_bytes(value: Any) -> Any:
    """Return JSON in which inline data has no bytes any more."""
    if isinstance(value, Mapping):
        inline = value.get("inlineData")
        shown = dict(value)
        if isinstance(inline, Mapping):
            shown["inlineData"] = {name: part for name, part in inline.items() if name != "data"}
        return {name: without_bytes(part) for name, part in shown.items()}
    return [without_bytes(part) for part in value] if isinstance(value, list | tuple) else value


def lacks_bytes(value: Any) -> bool:
    """Whether inline data at any depth of a stored part has lost its bytes."""
    if isinstance(value, Mapping):
        inline = value.get("inlineData")
        gone = isinstance(inline, Mapping) and "data" not in inline
        return gone or any(lacks_bytes(part) for part in value.values())
    return isinstance(value, list | tuple) and any(lacks_bytes(part) for part in value)
