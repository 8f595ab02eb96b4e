"""How a thread id becomes the name of a file, and back.

Rules of the room: pure; nothing in an id can leave the folder, and ids that differ only in case, or in the form of an
accent, get names that differ on any file system.
"""

import base64
import binascii
import hashlib
import re

from roder_trio.schema.ids import ThreadId, is_valid_id

SUFFIX = ".jsonl"
MAX_NAME = 100

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}", re.ASCII)
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


def file_name(thread_id: ThreadId) -> str:
    """The name, without suffix, of the files of a thread."""
    if _PLAIN.fullmatch(thread_id) and thread_id not in _DEVICES:
        return thread_id
    raw = thread_id.encode("utf-8", "surrogatepass")
    name = "~" + base64.b32encode(raw).decode().rstrip("=").lower()
    return name if len(name) <= MAX_NAME else "~~" + hashlib.sha256(raw).hexdigest()


def thread_id_of(name: str) -> ThreadId | None:
    """The thread id that `name` tells; None for a name that holds only a hash, or that no id has."""
    if name.startswith("~~"):
        return None
    if not name.startswith("~"):
        return name if file_name(name) == name else None
    body = name[1:].upper()
    try:
        thread_id = base64.b32decode(body + "=" * (-len(body) % 8)).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeError):
        return None
    return thread_id if is_valid_id(thread_id) and file_name(thread_id) == name else None
