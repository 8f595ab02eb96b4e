"""A function as a tool: its schema, its arguments, what it returns and raises, and its thread."""

import enum
import functools
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import attrs
import pytest
import trio

from roder_trio.errors import ToolDefinitionError, ToolError
from roder_trio.logic.json_schema import compiled
from roder_trio.logic.tool.arguments import Refused, check
from roder_trio.ports import HostRunTool, Tool
from roder_trio.schema.policy import PolicyMode
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec
from roder_trio.schema.transcript import Image
from roder_trio.tools import ExternalTool
from roder_trio.tools.function import FunctionTool, tool

CONTEXT = ToolContext(thread_id="t", turn_id="u", call_id="c")


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


@attrs.frozen
class Place:
    """Where it is."""

    city: str
    height: float = 0.0


@tool
async def weather(
    context: ToolContext,
    place: Place,
    unit: Unit = Unit.CELSIUS,
    days: int = 1,
    *,
    tags: list[str] | None = None,
    mode: Literal["short", "long"] = "short",
    extra: dict[str, bool] = {},  # noqa: B006 - a default is never shown
) -> str:
    """Tell the weather.

    It may be wrong.

    Args:
        place: the place,
            in two lines
        unit (Unit): of the temperature
        nobody: knows

    Returns:
        A text.
    """
    await trio.lowlevel.checkpoint()
    return f"{context.call_id} {place} {unit} {days} {tags} {mode} {extra}"


async def run(function: Any, context: ToolContext = CONTEXT, **arguments: Any) -> ToolOutput:
    made = function if isinstance(function, FunctionTool) else tool(function)
    output = await made.run(context, arguments)
    assert isinstance(output, ToolOutput)
    return output


# -- the declaration ---------------------------------------------------------------------------------------------------


def test_a_function_declares_its_tool() -> None:
    assert isinstance(weather, Tool)
    assert weather.spec == ToolSpec(
        name="weather",
        description="Tell the weather.\n\nIt may be wrong.",
        parameters={
            "type": "object",
            "properties": {
                "place": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "height": {"type": "number"}},
                    "required": ["city"],
                    "additionalProperties": False,
                    "description": "the place, in two lines",
                },
                "unit": {"type": "string", "enum": ["C", "K"], "description": "of the temperature"},
                "days": {"type": "integer"},
                "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                "mode": {"type": "string", "enum": ["long", "short"]},
                "extra": {"type": "object", "additionalProperties": {"type": "boolean"}},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    )


def test_the_decorator_takes_what_the_function_can_not_say() -> None:
    @tool(name="look-up", effects={"read"}, concurrency="exclusive", timeout=3)
    def find(what: str) -> str:
        """Find it."""
        return what

    spec = find.spec
    assert (spec.name, spec.description) == ("look-up", "Find it.")
    assert (spec.effects, spec.concurrency, spec.timeout) == (frozenset({"read"}), "exclusive", 3)


def test_the_decorator_without_options_is_the_decorator() -> None:
    @tool()
    def find(what: str) -> str:
        """Find it."""
        return what

    assert find.spec.name == "find"
    assert find.spec.effects is None


def test_an_unknown_option_is_a_type_error() -> None:
    options: dict[str, Any] = {"parallel": True}
    with pytest.raises(TypeError, match="parallel"):
        tool(**options)(weather)


async def test_the_tool_still_calls_like_the_function() -> None:
    @tool
    def double(n: int, times: int = 2) -> int:
        """Multiply."""
        return n * times

    assert double(4) == 8
    assert double(4, times=3) == 12
    assert double.__name__ == "double"  # type: ignore[attr-defined]
    assert double.__doc__ == "Multiply."
    assert (await weather(CONTEXT, Place("Ulm"))).startswith("c Place(city='Ulm'")


def test_a_method_of_an_object_can_be_a_tool() -> None:
    class Shelf:
        def find(self, what: str) -> str:
            """Find it."""
            return what

    assert list(tool(Shelf().find).spec.parameters["properties"]) == ["what"]
    with pytest.raises(ToolDefinitionError, match="'self'"):
        tool(Shelf.find)


def test_the_description_is_the_whole_docstring_where_no_arguments_are_told() -> None:
    @tool
    def find(what: str) -> str:
        """Find it.

        Example:
            find("it")
        """
        return what

    assert find.spec.description == 'Find it.\n\nExample:\n    find("it")'


def no_docstring(a: int) -> None: ...


def only_arguments(a: int) -> None:
    """Args:
    a: it
    """


def no_annotation(a) -> None:  # type: ignore[no-untyped-def]
    """Do."""


def many(*a: int) -> None:
    """Do."""


def keywords(**a: int) -> None:
    """Do."""


def positional(a: int, /) -> None:
    """Do."""


def only_text(a: str) -> None:
    """Do."""


def union(a: int | str) -> None:
    """Do."""


def anything(a: Any) -> None:
    """Do."""


def bare(a: list) -> None:  # type: ignore[type-arg]
    """Do."""


def binary(a: bytes) -> None:
    """Do."""


def context_or_none(a: ToolContext | None) -> None:
    """Do."""


def unresolved(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do."""


def generator() -> Iterator[int]:
    """Do."""
    yield 1


async def async_generator() -> AsyncIterator[int]:  # noqa: ASYNC900 - the decorator refuses it
    """Do."""
    yield 1


@pytest.mark.parametrize(
    "function",
    [
        no_docstring,
        only_arguments,
        no_annotation,
        many,
        keywords,
        positional,
        union,
        anything,
        bare,
        binary,
        context_or_none,
        unresolved,
        generator,
        async_generator,
        functools.partial(keywords, b=1),
        3,
    ],
)
def test_what_a_model_can_not_call_is_a_definition_error(function: Any) -> None:
    with pytest.raises(ToolDefinitionError):
        tool(function)


@pytest.mark.parametrize("options", [{"name": "a b"}, {"name": ""}, {"effects": {"fly"}}, {"timeout": 0}])
def test_options_that_no_tool_may_have_are_definition_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError):
        tool(**options)(only_text)


def test_the_schema_refuses_what_the_function_does_not_take() -> None:
    validate = compiled(weather.spec.parameters, "weather")
    found = check(weather.spec, '{"place": {"city": "Ulm", "hight": 1}}', None, validate)
    assert isinstance(found, Refused)
    assert "$.place.hight" in found.text


# -- a run -------------------------------------------------------------------------------------------------------------


async def test_arguments_arrive_converted_and_defaults_are_applied() -> None:
    output = await run(weather, place={"city": "Ulm", "height": 3}, unit="K")
    assert output.text == "c Place(city='Ulm', height=3.0) Unit.KELVIN 1 None short {}"
    assert not output.is_error


async def test_arguments_that_a_class_refuses_are_an_error_result() -> None:
    output = await run(weather, place={"city": 3}, unit="F", unknown=1)
    assert output.is_error
    assert output.text.startswith("invalid arguments: ")
    assert "@ $.place.city" in output.text
    assert "'F' is not a valid Unit @ $.unit" in output.text


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("result", "output"),
    [
        ("text", ToolOutput("text")),
        ("", ToolOutput("")),
        (None, ToolOutput("")),
        (ToolOutput("t", True, {"a": 1}, (Image("u"),)), ToolOutput("t", True, {"a": 1}, (Image("u"),))),
        ({"b": [1, None], "a": "é"}, ToolOutput('{"b":[1,null],"a":"é"}', display_payload={"b": [1, None], "a": "é"})),
        ((1, 2), ToolOutput("[1,2]", display_payload=[1, 2])),
        (False, ToolOutput("false", display_payload=False)),
        (3.5, ToolOutput("3.5", display_payload=3.5)),
    ],
)
async def test_what_a_function_returns_becomes_its_output(result: Any, output: ToolOutput, is_async: bool) -> None:
    def plain() -> Any:
        """Do."""
        return result

    async def waiting() -> Any:
        """Do."""
        return result

    assert await run(waiting if is_async else plain) == output


@pytest.mark.parametrize("result", [object(), {1: 2}, float("nan"), {"a": {1}}, b"x"])
async def test_a_result_that_is_no_json_is_an_error_result(result: Any) -> None:
    def plain() -> Any:
        """Do."""
        return result

    output = await run(plain)
    assert output.is_error
    assert output.text.startswith("The tool returned what is no JSON")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such file"), "no such file"),
        (ValueError("no"), "ValueError: no"),
        (ExceptionGroup("all", [ValueError("no")]), "ExceptionGroup: all (1 sub-exception): ValueError: no"),
        (ExceptionGroup("all", [ToolError("gone")]), "gone"),
    ],
)
async def test_what_a_function_raises_is_an_error_result(
    error: Exception, text: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def plain() -> None:
        """Do."""
        raise error

    async def waiting() -> None:
        """Do."""
        raise error

    assert await run(waiting if is_async else plain) == ToolOutput(text, is_error=True)
    # the traceback goes to the log, but for what the tool meant to say
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in logged] == ([] if isinstance(error, ToolError) else [True])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_an_exit_passes(error: type[BaseException]) -> None:
    async def leaving() -> None:
        """Do."""
        raise error

    with pytest.raises(error):
        await run(leaving)


async def test_a_cancel_passes_out_of_an_async_function() -> None:
    async def waiting() -> None:
        """Do."""
        await trio.sleep_forever()

    with trio.move_on_after(0) as scope:
        await run(waiting)
    assert scope.cancelled_caught


async def test_the_context_is_injected_and_the_caller_may_name_it_as_it_likes() -> None:
    @tool
    async def show(ctx: ToolContext) -> str:
        """Show."""
        ctx.report_progress("on it")
        return f"{ctx.thread_id} {ctx.policy_mode.value}"

    seen: list[str] = []
    context = attrs.evolve(CONTEXT, policy_mode=PolicyMode.PLAN, report_progress=seen.append)
    assert show.spec.parameters["properties"] == {}
    assert (await run(show, context)).text == "t plan"
    assert seen == ["on it"]


# -- worker threads ----------------------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_worker_thread_and_its_progress_in_the_loop() -> None:
    loop = threading.get_ident()
    seen: list[tuple[str, bool]] = []

    def work(context: ToolContext) -> bool:
        """Work."""
        context.report_progress("half way")
        return threading.get_ident() == loop

    context = attrs.evolve(CONTEXT, report_progress=lambda text: seen.append((text, threading.get_ident() == loop)))
    assert (await run(work, context)).text == "false"
    assert seen == [("half way", True)]


async def test_a_cancelled_function_is_left_in_its_thread_and_its_late_progress_is_dropped() -> None:
    started, go_on, done = trio.Event(), threading.Event(), trio.Event()
    seen: list[str] = []
    token = trio.lowlevel.current_trio_token()

    def work(context: ToolContext) -> str:
        """Work."""
        token.run_sync_soon(started.set)
        go_on.wait()
        context.report_progress("too late")
        token.run_sync_soon(done.set)
        return "late"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(run, work, attrs.evolve(CONTEXT, report_progress=seen.append)))
        await started.wait()
        nursery.cancel_scope.cancel()
    go_on.set()
    await done.wait()
    assert seen == []


async def test_functions_left_behind_do_not_keep_others_from_running() -> None:
    go_on = threading.Event()
    left: list[trio.Event] = []
    token = trio.lowlevel.current_trio_token()

    def hang(number: int) -> None:
        """Hang."""
        token.run_sync_soon(left[number].set)
        go_on.wait()

    def quick() -> str:
        """Be quick."""
        return "done"

    try:
        async with trio.open_nursery() as nursery:
            for number in range(50):  # more than trio's own limiter has places
                left.append(trio.Event())
                nursery.start_soon(functools.partial(run, hang, number=number))
            for started in left:
                await started.wait()
            nursery.cancel_scope.cancel()
        assert (await run(quick)).text == "done"
    finally:
        go_on.set()


def test_progress_after_the_loop_has_ended_is_dropped() -> None:
    started, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work(context: ToolContext) -> None:
        """Work."""
        started.set()
        go_on.wait()
        context.report_progress("much too late")
        done.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(run, work))
            await trio.to_thread.run_sync(started.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
    go_on.set()
    assert done.wait(60)


# -- tools of the host -------------------------------------------------------------------------------------------------


async def test_an_external_tool_is_marked_as_run_by_the_host() -> None:
    spec = ToolSpec(name="ask", description="Ask.", parameters={"type": "object"})
    made = ExternalTool(spec)
    assert isinstance(made, HostRunTool)
    assert (made.spec, made.timeout) == (spec, 300.0)
    assert ExternalTool(spec, timeout=None).timeout is None
    with pytest.raises(ToolError, match="'ask' is run by the host"):
        await made.run(CONTEXT, {})


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_an_external_tool_waits_some_time(seconds: float) -> None:
    spec = ToolSpec(name="ask", description="Ask.", parameters={"type": "object"})
    with pytest.raises(ToolDefinitionError, match="above 0"):
        ExternalTool(spec, timeout=seconds)


def test_the_room_of_tools_names_what_it_has() -> None:
    from roder_trio import tools

    assert set(tools.__all__) <= set(dir(tools))
    with pytest.raises(AttributeError, match="hammer"):
        _ = tools.hammer


def test_a_docstring_whose_arguments_follow_at_once_is_read() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    properties = tool(add).spec.parameters["properties"]
    assert [properties[name]["description"] for name in ("a", "b")] == ["the first", "the second"]


def test_a_docstring_that_can_not_be_read_is_refused() -> None:
    def broken(a: int) -> None:
        """Do it.

        Args:
        a
        """

    with pytest.raises(ToolDefinitionError, match="docstring"):
        tool(broken)
