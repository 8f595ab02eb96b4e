"""Patterns of paths: `*`, `?`, classes, `{a,b}` and `**`, as regular expressions.

Rules of the room: pure. A pattern is matched against the whole path; `**` as a whole component is any number of
directories, and at the end all that lies below. Names with a leading dot are names like others.
"""

from roder_trio.errors import ToolError

MAGIC = frozenset("*?[{\\")
ANY_NAME = "[^/]*"
ANY_PATH = "(?:[^/]+/)*[^/]+/?"


def split(pattern: str) -> tuple[str, str]:
    """Return the plain directories that a pattern starts with, and the rest, which has one component at least."""
    parts = pattern.split("/")
    plain = 0
    while plain < len(parts) - 1 and not MAGIC & set(parts[plain]):
        plain += 1
    if not any(parts[plain:]):
        plain = max(0, plain - 1)  # the slash at the end belongs to the last name
    head = "/".join(parts[:plain])
    return head + "/" if pattern.startswith("/") and not head else head, "/".join(parts[plain:])


def depth(pattern: str) -> int | None:
    """Return how many names deep a path can be that matches; None if there is no limit."""
    return None if "**" in pattern else pattern.rstrip("/").count("/") + 1


def to_regex(pattern: str) -> str:
    """Return a pattern as a regular expression for `fullmatch`. Raises ToolError."""
    out: list[str] = []
    open_braces = 0
    at = 0
    while at < len(pattern):
        rest = pattern[at:]
        character = rest[0]
        length = 1
        if rest.startswith("**") and _starts_component(pattern, at, open_braces):
            length, text = _stars(rest, open_braces)
        elif character == "*":
            text = ANY_NAME
        elif character == "?":
            text = "[^/]"
        elif character == "[":
            length, text = _class(rest)
        elif character == "{":
            open_braces, text = open_braces + 1, "(?:"
        elif character == "}" and open_braces:
            open_braces, text = open_braces - 1, ")"
        elif character == "," and open_braces:
            text = "|"
        else:
            length, text = (2, _quoted(rest[1])) if character == "\\" and len(rest) > 1 else (1, _quoted(character))
        out.append(text)
        at += length
    if open_braces:
        raise ToolError("bad pattern: a '{' has no '}'; write '\\{' for the character itself")
    return "".join(out)


def _starts_component(pattern: str, at: int, open_braces: int) -> bool:
    return at == 0 or pattern[at - 1] == "/" or (open_braces > 0 and pattern[at - 1] in "{,")


def _stars(rest: str, open_braces: int) -> tuple[int, str]:
    after = rest[2:3]
    if after == "/":
        return 3, "(?:[^/]+/)*"
    if not after or (open_braces and after in ",}"):
        return 2, ANY_PATH
    return 2, ANY_NAME


def _class(rest: str) -> tuple[int, str]:
    negated = rest[1:2] in {"!", "^"}
    start = 2 if negated else 1
    end = rest.find("]", start + 1)  # a bracket in front is a member
    if end < 0:
        return 1, _quoted("[")
    members = "".join(member if member == "-" else _quoted(member) for member in rest[start:end])
    return end + 1, f"(?!/)[{'^' if negated else ''}{members}]"


def _quoted(character: str) -> str:
    return character if character.isalnum() or character in "_/" else "\\" + character
