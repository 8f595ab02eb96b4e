"""Refusals that can be helped: what a Responses server can't take is left out, and the call is made once more.

Pure. Each repair is made at most once for a stream; only a 400 before any event is looked at.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from roder_trio.errors import ProviderFailure
from roder_trio.providers._engine import Post

_BAD_REQUEST = 400
_ORPHAN = re.compile(r"no tool call found for .*?call_id\s*['\"`]?([^\s'\"`]+)", re.IGNORECASE | re.DOTALL)
_REASONING = re.compile(r"invalid_encrypted_content|\brs_\w+")

DROP_OUTPUT = "output_dropped"
DROP_REASONING = "reasoning_dropped"


def repaired(failure: ProviderFailure, post: Post) -> Post | None:
    """Return the call to make instead of a refused one; None if it can't be helped, or was already."""
    if failure.status != _BAD_REQUEST:
        return None
    orphan = _ORPHAN.search(failure.message)
    if orphan is not None and DROP_OUTPUT not in post.repairs:
        ids = {orphan[1], orphan[1].rstrip(".,")}
        return _without(
            post, DROP_OUTPUT, lambda item: _is_output(item) and item.get("call_id") in ids, call_id=min(ids)
        )
    codes = f"{failure.provider_code} {failure.message}"
    if _REASONING.search(codes) and DROP_REASONING not in post.repairs:
        return _without(post, DROP_REASONING, lambda item: item.get("type") == "reasoning")
    return None


def _is_output(item: Mapping[str, Any]) -> bool:
    return str(item.get("type")).endswith("_call_output")


def _without(post: Post, name: str, refused: Callable[[Mapping[str, Any]], bool], **details: str) -> Post | None:
    kept = [item for item in post.body["input"] if not refused(item)]
    if len(kept) == len(post.body["input"]):
        return None
    return post.repaired(name, {**post.body, "input": kept}, **details)
