"""The tools `glob` and `grep`.

Rules of the room: blocking, in worker threads. A search says why it found nothing. `grep` has 2 seconds for a whole
call, which its caller counts as well.
"""

import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import trio

from roder_trio.errors import ToolError
from roder_trio.schema.tool import ToolSpec
from roder_trio.tools.workspace.listing import Listing
from roder_trio.tools.workspace.matcher import SECONDS, Matcher, compile_pattern
from roder_trio.tools.workspace.page import MAX_CHARACTERS, MAX_LINES, shortened
from roder_trio.tools.workspace.paths import Spot, Workspace, status, telling
from roder_trio.tools.workspace.pattern import depth, split, to_regex
from roder_trio.tools.workspace.read import lines_of, read_bytes
from roder_trio.tools.workspace.walk import Entry, Progress, walk

HINT = "; use regex=False to look for the text itself"
BLOCK = 100

GLOB = ToolSpec(
    name="glob",
    description="Find files and directories of the workspace by a pattern of their path, sorted.",
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "For example **/*.py, src/{a,b}*.txt or [a-z]?.md."},
            "path": {
                "type": "string",
                "minLength": 0,
                "description": "The directory that the pattern starts from; the workspace's root if left out.",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "How many entries to pass over; 0 if left out."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    effects={"read"},
)

GREP = ToolSpec(
    name="grep",
    description="Find lines in text files of the workspace; each result is path:line:text. At most 200 are shown.",
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 0, "description": "A regular expression, matched line by line."},
            "path": {
                "type": "string",
                "minLength": 0,
                "description": "A file, or a directory to search with all below it; the root if left out.",
            },
            "regex": {"type": "boolean", "description": "False: the pattern is plain text. True if left out."},
            "ignore_case": {"type": "boolean", "description": "Whether case is ignored; False if left out."},
            "word": {"type": "boolean", "description": "Whether only whole words count; False if left out."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    effects={"read"},
)


def glob(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Return a page of the paths that fit a pattern, or why there is none."""
    path = arguments.get("path", ".")
    plain, rest = split(arguments["pattern"])
    given = plain if plain.startswith("/") or path in ("", ".") else f"{path}/{plain}" if plain else path
    spot = workspace.locate(given)
    matcher = compile_pattern(to_regex(rest))
    progress = Progress()
    with telling(given or "."):
        found = [entry for entry in walk(spot, progress, depth(rest)) if _fits(matcher, entry)]
    if not found:
        return _nothing(rest, spot, progress)
    return Listing(workspace, spot, found, by_path=True, tool=GLOB.name, arguments=arguments).page(
        arguments.get("offset", 0)
    )


def _fits(matcher: Matcher, entry: Entry) -> bool:
    return any(matcher.matches(path) for path in {entry.path, entry.path.rstrip("/")})


def _nothing(rest: str, spot: Spot, progress: Progress) -> str:
    if not progress.entries:
        return f"[nothing found: the directory {spot.shown} is empty]"
    reason = f"none of the {progress.entries} entries that were looked at in {spot.shown} fits {rest!r}"
    hint = "" if "**" in rest else f"; **/{rest} would look at every depth"
    return f"[nothing found: {reason}{hint}]"


def grep(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Return the lines in which a pattern is found, or why there is none."""
    matcher = compile_pattern(
        arguments["pattern"],
        time.monotonic() + SECONDS,
        literal=not arguments.get("regex", True),
        ignore_case=arguments.get("ignore_case", False),
        word=arguments.get("word", False),
        hint=HINT,
    )
    spot = workspace.locate(arguments.get("path", "."))
    with telling(spot.given):
        single = not stat.S_ISDIR(status(spot).st_mode)
        search = _Search(matcher)
        search.run([spot] if single else _files(spot), single=single)
    return search.result()


def _files(spot: Spot) -> Iterator[Spot]:
    for entry in walk(spot, Progress()):
        if entry.kind == "file":
            yield spot.below(entry.parts)


@attrs.define
class _Search:
    """What one grep has found so far, and what it passed over."""

    matcher: Matcher
    lines: list[str] = attrs.field(factory=list)
    room: int = MAX_CHARACTERS
    searched: int = 0
    left_out: int = 0
    is_full: bool = False

    def run(self, files: "list[Spot] | Iterator[Spot]", *, single: bool) -> None:
        """Search files until there are as many lines as one result holds. Raises ToolError."""
        for spot in files:
            trio.from_thread.check_cancelled()
            try:
                data = read_bytes(spot)
            except (OSError, ToolError):
                if single:
                    raise
                self.left_out += 1
                continue
            self.searched += 1
            for number, line in self._found(lines_of(data.decode("utf-8", "replace"))):
                self._add(f"{spot.shown}:{number}:{shortened(line)}")
                if self.is_full:
                    return

    def _found(self, lines: list[str]) -> Iterator[tuple[int, str]]:
        for start in range(0, len(lines), BLOCK):
            block = lines[start : start + BLOCK]
            if self.matcher.is_local and not self.matcher.search("\n".join(block)):
                continue
            yield from ((n, line) for n, line in enumerate(block, start + 1) if self.matcher.search(line))

    def _add(self, line: str) -> None:
        self.room -= len(line) + 1
        if len(self.lines) == MAX_LINES or self.room < 0:
            self.is_full = True
        else:
            self.lines.append(line)

    def result(self) -> str:
        """Return the lines, with a note of what they lack."""
        if self.is_full:
            note = f"[only the first {len(self.lines)} matches; a narrower pattern or path shows others]"
            return "\n".join([*self.lines, note])
        if self.lines:
            return "\n".join(self.lines)
        passed = f"; {self.left_out} binary, large or unreadable ones were passed over" if self.left_out else ""
        return f"[nothing found in {self.searched} files{passed}]"
