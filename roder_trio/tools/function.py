"""A Python function as a tool: its signature is the schema, its docstring the description.

What the function raises is data for the model; the traceback goes to the log. A plain function runs in a worker thread
that a cancel leaves behind: its late result and progress are dropped, its side effects are its own.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_type_hints, overload

import attrs
import docstring_parser
import trio

from roder_trio.codec.structure import structure
from roder_trio.codec.text import REFUSALS, dump, plain
from roder_trio.errors import ToolDefinitionError, ToolError
from roder_trio.logic.tool.result import failure
from roder_trio.logic.type_schema import closed_object, schema_of
from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


class ToolOptions(TypedDict, total=False):
    """What the decorator takes; the rest is read from the function. All are as in `rt.ToolSpec`."""

    name: str
    effects: set[str] | frozenset[str] | None
    concurrency: Literal["parallel", "exclusive"]
    timeout: float | None


class FunctionTool(Tool, Generic[P, R]):
    """A function that a model may call, and that still calls like the function."""

    def __init__(self, function: Callable[P, R], **options: Unpack[ToolOptions]) -> None:
        unknown = set(options) - set(ToolOptions.__annotations__)
        if unknown:
            raise TypeError(f"tool() takes no {', '.join(sorted(unknown))}")
        functools.update_wrapper(self, function)
        name: str = options["name"] if "name" in options else getattr(function, "__name__", "")
        signature = _Signature.read(function, name)
        self.spec = ToolSpec(
            name=name,
            description=signature.description,
            parameters=signature.parameters,
            effects=options.get("effects"),
            concurrency=options.get("concurrency", "parallel"),
            timeout=options.get("timeout"),
        )
        self._function = function
        self._run: Callable[..., Any] = function
        self._kinds = signature.kinds
        self._contexts = signature.contexts

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run the function once; what it raises becomes an error result.

        A cancel ends an async function; a plain one is left behind in its thread.
        """
        await trio.lowlevel.checkpoint()
        values, misfits = self._structured(arguments)
        if misfits:
            return ToolOutput(f"invalid arguments: {'; '.join(misfits)}", is_error=True)
        try:
            if inspect.iscoroutinefunction(self._run):
                result = await self._run(**values, **dict.fromkeys(self._contexts, context))
            else:
                result = await self._run_in_thread(context, values)
            return _output(result)
        except ToolError as error:
            return failure(error)
        except Exception as error:
            log.exception("The tool %s failed.", self.spec.name)
            return failure(error)

    def _structured(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        values: dict[str, Any] = {}
        misfits: list[str] = []
        for name, value in arguments.items():
            if name in self._kinds:
                values[name], found = structure(value, self._kinds[name])
                misfits += [text.replace("@ $", f"@ $.{name}") for text in found]
        return values, misfits

    async def _run_in_thread(self, context: ToolContext, values: dict[str, Any]) -> Any:
        progress = _Progress(context.report_progress)
        inside = attrs.evolve(context, report_progress=progress.report)
        call = functools.partial(self._run, **values, **dict.fromkeys(self._contexts, inside))
        try:
            # a limiter of its own: threads that were left behind must not use up the places of others
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        finally:
            progress.is_open = False


@attrs.define
class _Progress:
    """Carries progress from a worker thread to the loop, until the call has ended."""

    show: Callable[[str], None]
    is_open: bool = True

    def report(self, text: str) -> None:
        """Called in the worker thread; what comes too late is dropped."""
        try:
            trio.from_thread.run_sync(self._report, text)
        except trio.RunFinishedError:
            log.debug("Progress came after the loop had ended.")

    def _report(self, text: str) -> None:
        if self.is_open:
            self.show(text)


def _output(result: Any) -> ToolOutput:
    if isinstance(result, ToolOutput):
        return result
    if result is None or isinstance(result, str):
        return ToolOutput(result or "")
    try:
        value = plain(result)
    except REFUSALS as error:
        raise ToolError(f"The tool returned what is no JSON: {error}.") from error
    return ToolOutput(dump(value).decode(), display_payload=value)


@attrs.frozen
class _Signature:
    """What a function's signature and docstring say of the tool."""

    description: str
    parameters: Mapping[str, Any]
    kinds: Mapping[str, Any]
    """The type of each parameter that the model gives."""
    contexts: tuple[str, ...]
    """The parameters that get the `ToolContext`."""

    @classmethod
    def read(cls, function: Callable[..., Any], name: str) -> "_Signature":
        """Raises ToolDefinitionError."""
        if not callable(function) or inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ToolDefinitionError(f"The tool {name!r} must be a function, async or not, and no generator.")
        try:
            parameters = inspect.signature(function).parameters
            hints = get_type_hints(function, include_extras=True)
        except Exception as error:  # names in annotations are evaluated here
            raise ToolDefinitionError(f"The signature of {name!r} can't be read: {error}.") from error
        description, told = _documentation(function, name)
        kinds, contexts = {}, []
        for parameter in parameters.values():
            _check_parameter(parameter, hints, name)
            if hints[parameter.name] is ToolContext:
                contexts.append(parameter.name)
            else:
                kinds[parameter.name] = hints[parameter.name]
        properties = {key: _property(kind, told.get(key), f"{key!r} of {name!r}") for key, kind in kinds.items()}
        required = [key for key in kinds if parameters[key].default is inspect.Parameter.empty]
        return cls(description, closed_object(properties, required), kinds, tuple(contexts))


def _check_parameter(parameter: inspect.Parameter, hints: Mapping[str, Any], name: str) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ToolDefinitionError(f"The parameter {parameter.name!r} of {name!r} can't be given by its name.")
    if parameter.name not in hints:
        raise ToolDefinitionError(f"The parameter {parameter.name!r} of {name!r} needs an annotation.")


def _property(kind: Any, told: str | None, where: str) -> dict[str, Any]:
    try:
        schema = schema_of(kind)
    except TypeError as error:
        raise ToolDefinitionError(f"The parameter {where} can't be given by a model: {error}.") from error
    return {**schema, "description": told} if told else schema


def _documentation(function: Callable[..., Any], name: str) -> tuple[str, dict[str, str]]:
    """Return the docstring up to `Args:`, and what it says of each parameter."""
    text = inspect.getdoc(function) or ""
    lines = text.splitlines()
    end = next((at for at, line in enumerate(lines) if line.strip() in ("Args:", "Arguments:")), len(lines))
    description = "\n".join(lines[:end]).strip()
    if not description:
        raise ToolDefinitionError(f"The tool {name!r} needs a docstring that tells the model what it does.")
    try:
        arguments = docstring_parser.parse(text, docstring_parser.DocstringStyle.GOOGLE).params
    except docstring_parser.ParseError as error:
        raise ToolDefinitionError(f"The docstring of the tool {name!r} can't be read: {error}.") from error
    return description, {entry.arg_name: " ".join((entry.description or "").split()) for entry in arguments}


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a function a tool: `@tool`, or `@tool(name=..., effects={"read"}, concurrency=..., timeout=...)`.

    The docstring up to `Args:` is the description, its `Args:` entries describe the parameters, the annotations are the
    schema: `str int float bool None`, `list[T]`, `dict[str, T]`, `Literal`, `Enum`, `Optional[T]`, attrs classes. A
    parameter annotated `ToolContext` gets that. `effects` are what consent goes by, of "read", "write", "process",
    "network" and "thread", and the rest too is as in `ToolSpec`. Raises ToolDefinitionError for what can't be declared
    so.
    """
    if function is not None:
        return FunctionTool(function, **options)
    return lambda function: FunctionTool(function, **options)
