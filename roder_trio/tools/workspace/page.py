"""How much one result shows, and how it names the call that shows the rest.

Rules of the room: pure. A page stays below what the runtime would cut out of a result's middle, so that nothing the
model was promised is lost on the way.
"""

import json
from collections.abc import Sequence
from typing import Any

MAX_LINES = 200
MAX_CHARACTERS = 19_000
MAX_TEXT = 400


def page(lines: Sequence[str]) -> Sequence[str]:
    """Return as many of the lines as one result holds, at least one if there is any."""
    room = MAX_CHARACTERS
    taken = 0
    for line in lines[:MAX_LINES]:
        room -= len(line) + 1
        if room < 0 and taken:
            break
        taken += 1
    return lines[:taken]


def call(name: str, **arguments: Any) -> str:
    """Return a call as the model may write it."""
    shown = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return f"{name}({shown})"


def shortened(text: str) -> str:
    """Return one line's text, or its beginning and how much was left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}[... {len(text) - MAX_TEXT} characters left out ...]"
