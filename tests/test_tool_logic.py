"""The order of calls, their ids, the caps of their texts, the limits of their failures, and what is offered."""

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roder_trio.errors import DuplicateTool, ProviderFailure, ProviderFailureKind, ToolError
from roder_trio.logic import policy as consent
from roder_trio.logic.tool.arguments import check, forbidden_tool, unknown_tool
from roder_trio.logic.tool.caps import Capped, capped
from roder_trio.logic.tool.failure import CONSECUTIVE, MAX_LISTED, PER_TURN, Failures, LimitHit, limit_hit
from roder_trio.logic.tool.ids import SortedCalls, sort_calls
from roder_trio.logic.tool.offer import check_names, definition, is_permitted, offered
from roder_trio.logic.tool.refusal import was_refused
from roder_trio.logic.tool.result import failure
from roder_trio.logic.tool.schedule import schedule
from roder_trio.schema.policy import PolicyMode
from roder_trio.schema.tool import ToolOutput, ToolSpec
from roder_trio.schema.transcript import ProviderMetadata, ToolCall, ToolResult

# -- the schedule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "groups"),
    [
        ("", []),
        ("p", ["p"]),
        ("ppp", ["ppp"]),
        ("pep", ["p", "e", "p"]),
        ("eepp", ["e", "e", "pp"]),
        ("ppepep", ["pp", "e", "p", "e", "p"]),
    ],
)
def test_neighbours_that_may_run_side_by_side_are_one_group(calls: str, groups: list[str]) -> None:
    assert ["".join(group) for group in schedule(calls, lambda call: call == "e")] == groups


def test_without_parallel_calls_every_call_stands_alone() -> None:
    assert schedule("pep", lambda call: call == "e", parallel=False) == (("p",), ("e",), ("p",))


@given(st.lists(st.booleans()), st.booleans())
def test_a_schedule_keeps_every_call_in_order_and_exclusive_ones_alone(calls: list[bool], parallel: bool) -> None:
    numbered = list(enumerate(calls))
    groups = schedule(numbered, lambda call: call[1], parallel=parallel)
    assert [call for group in groups for call in group] == numbered
    assert all(len(group) == 1 for group in groups if group[0][1] or not parallel)


# -- ids ---------------------------------------------------------------------------------------------------------------


def call(id: str = "c1", arguments: str = '{"a": 1}', name: str = "read") -> ToolCall:
    return ToolCall(id, name, arguments)


def sort(*calls: ToolCall, answered: tuple[ToolCall, ...] = (), earlier: tuple[str, ...] = ()) -> SortedCalls:
    numbers = itertools.count(1)
    return sort_calls(calls, {call.id: call for call in answered}, earlier, lambda: f"fresh{next(numbers)}")


def test_new_calls_are_kept_as_they_are() -> None:
    assert sort(call("a"), call("b")) == SortedCalls((call("a"), call("b")))


def test_an_empty_id_fails_the_turn() -> None:
    with pytest.raises(ProviderFailure) as caught:
        sort(call("a"), call(""))
    assert caught.value.kind is ProviderFailureKind.PROTOCOL


def test_the_first_of_two_calls_with_one_id_counts() -> None:
    found = sort(call("a", "{}"), call("a", '{"b": 2}'), call("b"))
    assert found == SortedCalls((call("a", "{}"), call("b")), duplicates=("a",))


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{ "a":1.0 }', '{"\\u0061": 1}'])
def test_a_call_of_this_turn_with_equal_arguments_is_a_replay(arguments: str) -> None:
    found = sort(call(arguments=arguments), call("b"), call(), answered=(call(),))
    assert found == SortedCalls((call("b"),), replayed=("c1",), duplicates=("c1",))


def test_a_replay_without_arguments_is_equal_to_one_with_none() -> None:
    assert sort(call(arguments=" "), answered=(call(arguments="{}"),)).replayed == ("c1",)


def test_broken_arguments_are_equal_to_the_same_bytes_only() -> None:
    assert sort(call(arguments="{"), answered=(call(arguments="{"),)).replayed == ("c1",)
    with pytest.raises(ProviderFailure):
        sort(call(arguments="{"), answered=(call(arguments="{ "),))


@pytest.mark.parametrize(
    "changed", [call(arguments='{"a": 2}'), call(arguments='{"a": true}'), call(name="write"), call(arguments="{}")]
)
def test_another_call_under_an_id_of_this_turn_fails_the_turn(changed: ToolCall) -> None:
    with pytest.raises(ProviderFailure, match="'c1'") as caught:
        sort(call("b"), changed, answered=(call(),))
    assert caught.value.kind is ProviderFailureKind.PROTOCOL


def test_an_id_of_an_earlier_turn_is_replaced_by_a_fresh_one() -> None:
    found = sort(call("a"), call("c1"), earlier=("c1", "x"))
    assert found == SortedCalls((call("a"), call("fresh1")), renamed={"c1": "fresh1"})


def test_an_id_of_this_turn_is_a_replay_even_if_an_earlier_turn_had_it_too() -> None:
    assert sort(call(), answered=(call(),), earlier=("c1",)).replayed == ("c1",)


OUTPUT: list[Any] = [
    {"type": "reasoning", "id": "c1"},
    {"type": "function_call", "id": "fc_1", "call_id": "old", "name": "read"},
    {"type": "function_call", "call_id": "new", "name": "read"},
    {"type": "custom_tool_call", "call_id": "old", "input": "again"},
    {"type": "function_call", "call_id": "replayed", "name": "read"},
    {"type": "tool_use", "id": "old2", "name": "read"},
    {"functionCall": {"id": "old3", "name": "read"}},
    "text",
]


def test_the_replay_metadata_of_the_step_gets_the_same_ids() -> None:
    found = sort(
        call("old"),
        call("new"),
        call("old"),
        call("replayed"),
        call("old2"),
        call("old3"),
        answered=(call("replayed"),),
        earlier=("old", "old2", "old3"),
    )
    payload = found.rewritten(ProviderMetadata({"dialect": "d", "output": OUTPUT})).payload
    assert payload == {
        "dialect": "d",
        "output": [
            {"type": "reasoning", "id": "c1"},
            {"type": "function_call", "id": "fc_1", "call_id": "fresh1", "name": "read"},
            {"type": "function_call", "call_id": "new", "name": "read"},
            {"type": "tool_use", "id": "fresh2", "name": "read"},
            {"functionCall": {"id": "fresh3", "name": "read"}},
            "text",
        ],
    }


def test_metadata_without_a_changed_call_stays_itself() -> None:
    metadata = ProviderMetadata({"output": OUTPUT})
    assert sort(call("new")).rewritten(metadata) is metadata


@pytest.mark.parametrize("payload", [{"end_turn": False}, {"output": "text"}])
def test_metadata_without_an_output_stays_itself(payload: dict[str, Any]) -> None:
    metadata = ProviderMetadata(payload)
    assert sort(call("a"), earlier=("a",)).rewritten(metadata) is metadata


@given(st.lists(st.sampled_from("abcdef")), st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("cdef")))
def test_every_stored_call_has_an_id_that_the_thread_did_not_have(
    ids: list[str], answered: set[str], earlier: set[str]
) -> None:
    found = sort(
        *map(call, ids), answered=tuple(map(call, sorted(answered))), earlier=tuple(sorted(answered | earlier))
    )
    stored = [stored.id for stored in found.calls]
    assert len(set(stored)) == len(stored)
    assert not set(stored) & (answered | earlier)
    assert len(stored) + len(found.replayed) + len(found.duplicates) == len(ids)


# -- caps --------------------------------------------------------------------------------------------------------------


def lines(count: int, end: str = "\n") -> str:
    return "".join(f"{number}\n" for number in range(count - 1)) + f"{count - 1}{end}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a", 0),
        ("a\n", 1),
        ("\n", 1),
        ("a\nb", 1),
        ("a\r\u2028b", 0),
        (lines(200), 200),
        (lines(200) + "and what no line feed ends", 200),
        (lines(200, ""), 199),
    ],
)
def test_a_small_text_stays_as_it_is(text: str, count: int) -> None:
    assert capped(text) == Capped(text, count, len(text), cut=False)


@pytest.mark.parametrize("rest", ["", "and what no line feed ends"])
@pytest.mark.parametrize("count", [201, 500])
def test_of_many_lines_the_first_120_and_the_last_80_stay(count: int, rest: str) -> None:
    text = lines(count) + rest
    found = capped(text)
    kept = found.text.split("\n")
    assert (found.lines, found.characters, found.cut) == (count, len(text), True)
    assert kept[:120] == text.split("\n")[:120]
    assert kept[120] == f"[... {count - 200} lines left out ...]"
    assert kept[121:] == text.split("\n")[-81:]


def test_many_empty_lines_are_lines() -> None:
    found = capped("\n" * 300)
    assert found.text == "\n" * 120 + "[... 100 lines left out ...]\n" + "\n" * 80


@pytest.mark.parametrize("size", [20_001, 20_030, 29_999, 100_000, 1_000_000])
@pytest.mark.parametrize("letter", ["x", "😀"])
def test_of_many_characters_the_beginning_and_the_end_stay(size: int, letter: str) -> None:
    text = letter * (size - 1) + "e"
    found = capped(text)
    head, _, rest = found.text.partition("[... ")
    number, _, tail = rest.partition(" characters left out ...]")
    assert (found.lines, found.characters, found.cut) == (0, size, True)
    assert head == letter * 12_000
    assert tail == letter * (len(tail) - 1) + "e"
    assert int(number) + 12_000 + len(tail) == size
    assert 20_000 - 1 <= len(found.text) <= 20_000
    assert found.text.encode()


def test_many_long_lines_are_cut_twice() -> None:
    found = capped(("y" * 999 + "\n") * 300)
    assert (found.lines, found.characters) == (300, 300_000)
    assert len(found.text) <= 20_000
    assert "[... 180" in found.text  # what is left out of the 200 lines and their marker


@given(st.text(alphabet="ab\n😀", max_size=50), st.integers(1, 2000))
def test_a_capped_text_is_within_its_limits_and_is_cut_only_if_it_must_be(part: str, times: int) -> None:
    text = part * times
    found = capped(text)
    assert len(found.text) <= 20_000
    assert found.text.count("\n") <= 201
    assert found.cut == (found.lines > 200 or found.characters > 20_000)
    assert found.cut or found.text == text


# -- failures ----------------------------------------------------------------------------------------------------------


def results(outcomes: str) -> list[ToolResult]:
    return [
        ToolResult(f"c{number}", "read", f"no file {number}\nmore", is_error=outcome == "x")
        for number, outcome in enumerate(outcomes)
    ]


def hit(outcomes: str, **more: Any) -> LimitHit | None:
    settings = {"per_turn": 128, "consecutive": 5, "goes_on": True, **more}
    return limit_hit(Failures().add(results(outcomes)), **settings)


@pytest.mark.parametrize(
    ("outcomes", "in_turn", "consecutive"),
    [("", 0, 0), ("xx", 2, 2), ("xxo", 2, 0), ("xoxx", 3, 2)],
)
def test_failures_count_in_call_order_and_a_success_ends_a_row(outcomes: str, in_turn: int, consecutive: int) -> None:
    found = Failures().add(results(outcomes))
    assert (found.in_turn, found.consecutive) == (in_turn, consecutive)
    assert Failures().add(results(outcomes[:2])).add(results(outcomes)[2:]) == found


def test_below_the_limits_nothing_happens() -> None:
    assert hit("xxxx") is None
    assert hit("xxxxxo") is None


def test_a_row_of_failures_is_answered_by_a_nudge_that_says_what_failed() -> None:
    found = hit("oxxxxx")
    assert found is not None
    assert (found.name, found.value) == (CONSECUTIVE, 5)
    assert found.nudge is not None
    assert found.nudge.text.startswith("The last 5 tool calls failed:\n- read: no file 1\n- read: no file 2\n")
    assert "another way" in found.nudge.text
    assert "no file 0" not in found.nudge.text
    assert "more" not in found.nudge.text


def test_a_row_of_failures_fails_the_turn_if_it_may_not_go_on() -> None:
    found = hit("xxxxx", goes_on=False)
    assert found == LimitHit(CONSECUTIVE, 5)
    assert found.error == "The turn reached the limit max_consecutive_tool_failures of 5."


def test_the_limit_of_the_turn_comes_first_and_fails_it() -> None:
    assert hit("xxxxx", per_turn=5) == LimitHit(PER_TURN, 5)
    assert hit("xo" * 128) == LimitHit(PER_TURN, 128)


def test_after_a_nudge_the_row_begins_anew_and_the_sum_stays() -> None:
    assert Failures().add(results("xxxxx")).reset() == Failures(in_turn=5)


def test_a_nudge_is_short_however_long_the_failures_are() -> None:
    long = [attrs.evolve(result, result="z" * 5000) for result in results("x" * 50)]
    found = limit_hit(Failures().add(long), per_turn=128, consecutive=5, goes_on=True)
    assert found is not None
    assert found.nudge is not None
    assert found.nudge.text.startswith("The last 50 tool calls failed:")
    assert len(found.nudge.text) < 3000
    assert found.nudge.text.count("\n- ") == MAX_LISTED


# -- what is offered ---------------------------------------------------------------------------------------------------


def spec(name: str, **more: Any) -> ToolSpec:
    return ToolSpec(name=name, description=f"The {name}.", parameters={"type": "object", **more})


@pytest.mark.parametrize(
    ("lists", "permitted"),
    [
        ([], "abc"),
        ([(), ()], "abc"),
        ([("a", "b"), ()], "ab"),
        ([(), ("b",)], "b"),
        ([("a", "b"), ("b", "c")], "b"),
        ([("a",), ("b",)], ""),
    ],
)
def test_allowlists_intersect_and_an_empty_one_has_all(lists: list[tuple[str, ...]], permitted: str) -> None:
    assert "".join(name for name in "abc" if is_permitted(name, *lists)) == permitted
    assert [tool.name for tool in offered([spec("c"), spec("a"), spec("b")], *lists)] == list(permitted)


def test_tools_are_offered_by_name_with_ordered_schemas() -> None:
    first = offered([spec("b", additionalProperties=False, properties={"z": {}, "a": {}}), spec("a")])
    assert [tool.name for tool in first] == ["a", "b"]
    assert list(first[1].parameters) == ["type", "properties", "additionalProperties"]
    assert list(first[1].parameters["properties"]) == ["a", "z"]


def test_a_freeform_tool_is_offered_as_one() -> None:
    tool = attrs.evolve(spec("patch"), freeform_field="input")
    assert definition(tool).freeform_field == "input"
    assert definition(tool).description == "The patch."


def test_two_tools_of_one_name_are_refused() -> None:
    check_names([spec("a"), spec("b")])
    with pytest.raises(DuplicateTool) as caught:
        check_names([spec("a"), spec("b"), spec("a")])
    assert caught.value.name == "a"


# -- failures of tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such file"), "no such file"),
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ExceptionGroup("two", [ToolError("gone")]), "gone"),
        (ExceptionGroup("out", [ExceptionGroup("in", [ToolError("gone")])]), "gone"),
        (
            ExceptionGroup("both", [ValueError("no"), ExceptionGroup("in", [KeyError("k")])]),
            "ExceptionGroup: both (2 sub-exceptions): ValueError: no; KeyError: 'k'",
        ),
    ],
)
def test_a_failure_of_a_tool_is_a_text_for_the_model(error: Exception, text: str) -> None:
    assert failure(error) == ToolOutput(text, is_error=True)


# -- refusals ----------------------------------------------------------------------------------------------------------

LOOK = ToolSpec(
    name="look",
    description="",
    parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    effects={"read"},
)
WRITE = attrs.evolve(LOOK, name="write", effects={"write"})


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (check(LOOK, '{"b": 1}', None, lambda value: ()).text, True),
        (check(LOOK, "", "length", lambda value: ()).text, True),
        (unknown_tool("see", ["look"]).text, True),
        (forbidden_tool("look", []).text, True),
        (consent.decide(PolicyMode.PLAN, WRITE).refusal, True),
        (consent.decide(PolicyMode.DEFAULT, LOOK, ["look"]).refusal, True),
        ("denied by hook", True),
        ("denied by hook: not today", True),
        ("approval denied", True),
        ("approval timed out: nobody answered", True),
        ("needs approval, and nobody can give it", True),
        ("approval denied by the ministry", False),
        ("the policy denied: no", False),
        ("interrupted", False),
        ("", False),
    ],
)
def test_a_result_tells_whether_its_call_was_refused(text: str, refused: bool) -> None:
    assert was_refused(ToolResult("c", "look", text, is_error=True)) is refused
    assert not was_refused(ToolResult("c", "look", text))
