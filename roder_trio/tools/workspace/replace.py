r"""One replacement in a text: where the old piece stands, and what takes its place.

Rules of the room: pure. The piece must be found once: as it is, with the line ends of the file, or, only if neither is
there, with runs of white space equal to one another. Then white space at the piece's own edges stays as the file has
it.
"""

from roder_trio.errors import ToolError

MAX_COUNT = 1_000


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
    piece = _collapsed(old)
    collapsed = _collapsed(text)
    if (count := _count(collapsed, piece)) != 1:
        raise ToolError(_told(count))
    first = collapsed.index(piece) + bool(before)
    last = first + len(" ".join(words)) - 1
    start, end = _place(text, collapsed, first), _place(text, collapsed, last) + 1
    if text.startswith(before, start - len(before)):
        start -= len(before)
    else:
        new = new.lstrip()
    if text.startswith(after, end):
        end += len(after)
    else:
        new = new.rstrip()
    return start, end, new


def _collapsed(text: str) -> str:
    """Return a text with each run of white space as one space."""
    before = " " if text[:1].isspace() else ""
    after = " " if text[-1:].isspace() else ""
    return f"{before}{' '.join(text.split())}{after}"


def _place(text: str, collapsed: str, at: int) -> int:
    """Return where the character of a collapsed text, which is no space, stands in the text."""
    head = collapsed[:at].split()
    inner = 0 if collapsed[at - 1 : at] in ("", " ") else len(head.pop())
    place = 0
    for word in head:
        place = text.index(word, place) + len(word)
    while text[place].isspace():
        place += 1
    return place + inner
