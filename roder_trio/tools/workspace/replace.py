r"""One replacement in a text: where the old piece stands, and what takes its place.

Rules of the room: pure, but for the time that matching may take. The piece must be found once: as it is, with the line
ends of the file, or, only if neither is there, with runs of white space equal to one another. Then white space at the
piece's own edges stays as the file has it.
"""

import regex

from roder_trio.errors import ToolError

MAX_COUNT = 1_000
SECONDS = 2.0


def replaced(text: str, old: str, new: str) -> str:
    """Return `text` with the one `old` replaced. Raises ToolError with the count if it isn't one."""
    if not old:
        raise ToolError("`old` is empty")
    for piece in dict.fromkeys((old, _with_ends(old, _line_end(text)))):
        count = _count(text, piece)
        if count == 1:
            start = text.index(piece)
            end = start + len(piece)
            return text[:start] + _with_ends(new, _line_end(piece, text)) + text[end:]
        if count:
            raise ToolError(_told(count))
    start, end, keep = _loosely(text, old, new)
    return text[:start] + _with_ends(keep, _line_end(text[start:end], text)) + text[end:]


def _told(count: int) -> str:
    times = f"{MAX_COUNT} times or more" if count >= MAX_COUNT else f"{count} times"
    more = "" if count == 0 else "; add lines around it that tell the places apart"
    return f"`old` was found {times}, not once{more}"


def _count(text: str, piece: str) -> int:
    count = 0
    at = text.find(piece)
    while at >= 0 and count < MAX_COUNT:
        count += 1
        at = text.find(piece, at + 1)
    return count


def _line_end(*texts: str) -> str:
    """The usual line end of the first text that has any."""
    for text in texts:
        if lines := text.count("\n"):
            return "\r\n" if text.count("\r\n") * 2 > lines else "\n"
    return "\n"


def _with_ends(text: str, end: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", end)


def _loosely(text: str, old: str, new: str) -> tuple[int, int, str]:
    """Return where `old` stands if white-space runs compare equal, and what of `new` goes there."""
    words = old.split()
    if not words:
        raise ToolError(_told(0))
    before = old[: len(old) - len(old.lstrip())]
    after = old[len(old.rstrip()) :]
    source = r"\s++".join(regex.escape(word) for word in words)
    source = (r"(?<=\s)" if before else "") + source + (r"(?=\s)" if after else "")
    try:
        places = [match.span() for match in regex.finditer(source, text, overlapped=True, timeout=SECONDS)]
    except TimeoutError:
        raise ToolError("looking for `old` took too long") from None
    if len(places) != 1:
        raise ToolError(_told(len(places)))
    start, end = places[0]
    if before and text.startswith(before, start - len(before), start):
        start -= len(before)
    elif before:
        new = new.lstrip()
    if after and text.startswith(after, end):
        end += len(after)
    elif after:
        new = new.rstrip()
    return start, end, new
