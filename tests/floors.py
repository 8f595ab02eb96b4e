"""The floors of the package as data, and the readers of its source that check them.

A module's *room* is its first component below the package (`schema`, `logic`, `stores`, ...), so `logic.thread.decide`
stands in the room `logic`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

PACKAGE = "roder_trio"
FACE = ("", "compaction", "events", "goals", "inference", "items", "transcript")

FLOOR = {
    "errors": 0,
    "schema": 0,
    "logic": 1,
    "codec": 2,
    "ports": 2,
    "stores": 3,
    "providers": 3,
    "tools": 3,
    "actors": 4,
    "runtime": 5,
    **dict.fromkeys(FACE, 5.5),
    "cli": 6,
    "server": 6,
    "testing": 6,
}
"""The public face, modules that only re-export, stands between the runtime and the programs that use it."""

SIBLINGS = ({"stores", "providers", "tools", "actors"},)
BESIDE = {"schema": {"errors"}, **{room: set(FACE) for room in FACE}}
"""Rooms of the same floor that a room may see, apart from itself."""

PURE_FORBIDS = frozenset(
    [
        "trio",
        "httpx",
        "time",
        "random",
        "secrets",
        "uuid",
        "os",
        "pathlib",
        "io",
        "tempfile",
        "shutil",
        "glob",
        "socket",
        "ssl",
        "select",
        "signal",
        "subprocess",
        "threading",
        "multiprocessing",
        "concurrent",
        "asyncio",
        "contextvars",
        "sqlite3",
        "logging",
        "sys",
        "cattrs",
    ]
)
CLOCKS = {"now", "utcnow", "today"}
LOCKS = {"Lock", "Semaphore", "StrictFIFOLock", "Condition", "CapacityLimiter"}
LIMITER_ROOMS = {"stores", "tools"}
"""The worker threads of a store or a tool have a limiter of their own; it guards no state."""


@attrs.frozen
class Module:
    """A module of the package with its syntax tree; `name` has no package before it."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def room(self) -> str:
        """The first component of the name, "" for the package itself."""
        return self.name.partition(".")[0]


def parse(name: str, source: str) -> Module:
    """Return a module made of a text, as the tests of the checks need it."""
    return Module(name, ast.parse(source))


def read_modules(root: Path) -> Iterator[Module]:
    """Read every module below `root`, the folder of the package."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        yield Module(name, ast.parse(path.read_text("utf-8"), str(path)), is_package)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of each thing imported; `from a import b` gives `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                own = [PACKAGE, *filter(None, module.name.split("."))]
                up = node.level - 1 if module.is_package else node.level
                base = ".".join([*own[: len(own) - up], *filter(None, [base])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def inner_imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the room of each import from the package itself."""
    for line, name in imports(module):
        head, _, rest = name.partition(".")
        if head == PACKAGE:
            room = rest.partition(".")[0]
            yield line, room if room in FLOOR else ""


def floor_breaks(module: Module) -> Iterator[str]:
    """Yield imports that don't go to a lower floor, or that go to a sibling."""
    room = module.room
    if room not in FLOOR:
        yield f"{module.name}: the room {room!r} stands on no floor"
        return
    for line, target in inner_imports(module):
        if target == room or target in BESIDE.get(room, ()) or (module.name == "" and target == "testing"):
            continue  # `rt.testing` is a name of the public face
        siblings = any({room, target} <= group for group in SIBLINGS)
        if siblings or FLOOR[target] >= FLOOR[room]:
            yield f"{module.name}:{line} imports {target or PACKAGE!r}"


def library_breaks(module: Module) -> Iterator[str]:
    """Yield imports of libraries that have one place only, or that pure code can't have."""
    for line, name in imports(module):
        library = name.partition(".")[0]
        pure = module.room == "logic" and library in PURE_FORBIDS
        data = module.room in {"errors", "schema"} and library in {"trio", "httpx", "cattrs"}
        client = library == "httpx" and module.name != "providers._http"
        converter = library == "cattrs" and module.room != "codec"
        if pure or data or client or converter or library in {"asyncio", "anyio", "contextvars"}:
            yield f"{module.name}:{line} imports {name}"


def clock_breaks(module: Module) -> Iterator[str]:
    """Yield calls by which pure code would read a clock or a file."""
    if module.room != "logic":
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        opens = isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input"}
        reads = isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
        if opens or reads:
            yield f"{module.name}:{node.lineno} calls {ast.unparse(node.func)}"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own_nodes(child)


def _reraises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _function_breaks(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg == "timeout":
            yield f"{node.name} has a timeout parameter"
    generator = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _own_nodes(node))
    managed = any(ast.unparse(mark).endswith("asynccontextmanager") for mark in node.decorator_list)
    if isinstance(node, ast.AsyncFunctionDef) and generator and not managed:
        yield f"{node.name} is an async generator"


def _handler_breaks(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.ExceptHandler):
        return
    if node.type is None:
        yield "a bare except"
        return
    caught = {name.rpartition(".")[2] for name in re.findall(r"[\w.]+", ast.unparse(node.type))}
    for greedy in sorted(caught & {"BaseException", "Cancelled"}):
        if not _reraises(node):
            yield f"a {greedy} that is caught for good"


def _name_breaks(node: ast.AST, room: str) -> Iterator[str]:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    limiter = name == "CapacityLimiter" and room in LIMITER_ROOMS
    if name in LOCKS and not limiter:
        yield f"a {name}"
    if name in {"spawn_system_task", "ContextVar"}:
        yield f"a {name}"


def concurrency_breaks(module: Module) -> Iterator[str]:
    """Yield locks, context variables, detached tasks, async generators, timeouts as parameters, greedy handlers."""
    for node in ast.walk(module.tree):
        found = [*_function_breaks(node), *_handler_breaks(node), *_name_breaks(node, module.room)]
        yield from (f"{module.name}:{getattr(node, 'lineno', 0)} {what}" for what in found)
