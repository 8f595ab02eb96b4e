"""Arguments as a model writes them: what runs, what is refused under which class, and what the refusal names."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roder_trio.errors import ToolDefinitionError
from roder_trio.logic.json_schema import MAX_SHOWN, Validate, compiled, ordered
from roder_trio.logic.strict_json import MAX_DEPTH, JsonFlaw, parse, same
from roder_trio.logic.tool.arguments import Checked, Refused, check, forbidden_tool, unknown_tool
from roder_trio.schema.tool import ToolSpec

PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string", "minLength": 0},
        "n": {"type": "integer", "maximum": 10},
        "x": {"type": "number"},
        "flag": {"type": "boolean"},
        "nothing": {"type": "null"},
        "mode": {"enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
        "either": {"type": ["string", "null"]},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": True,
        "inner": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "free": {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    },
    "additionalProperties": False,
}
ANYTHING = {"type": "object"}


def spec(parameters: dict[str, Any]) -> ToolSpec:
    return ToolSpec(name="read", description="Read.", parameters=parameters)


def run(text: str, finish_reason: str | None = None, **more: Any) -> Checked | Refused:
    parameters = {**PARAMETERS, **more}
    return check(spec(parameters), text, finish_reason, compiled(parameters, "read"))


def refused(text: str, finish_reason: str | None = None, **more: Any) -> Refused:
    found = run(text, finish_reason, **more)
    assert isinstance(found, Refused)
    assert f"{found.klass}: " in found.text
    assert found.text.startswith("invalid arguments: ")
    return found


# -- what is accepted --------------------------------------------------------------------------------------------------

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    (" \n", {}),
    ("{}", {}),
    ('{"x": 3}', {"x": 3}),
    ('{"x": 3.5}', {"x": 3.5}),
    ('{"n": 3}', {"n": 3}),
    ('{"flag": true, "nothing": null}', {"flag": True, "nothing": None}),
    ('{"text": " "}', {"text": " "}),
    ('{"path": ""}', {"path": ""}),
    ('{"either": null, "maybe": 4}', {"either": None, "maybe": 4}),
    ('{"pair": [1, "a"]}', {"pair": [1, "a"]}),
    ('{"any": [{"a": 1}]}', {"any": [{"a": 1}]}),
    ('{"counts": {"a": 1}, "free": {"a1": 1}}', {"counts": {"a": 1}, "free": {"a1": 1}}),
    ('{"inner": {"name": "x"}, "tags": ["a"]}', {"inner": {"name": "x"}, "tags": ["a"]}),
    ('{"path": "😀 é"}', {"path": "😀 é"}),
    ('{"path": "{:,[NaN]"}', {"path": "{:,[NaN]"}),
]


@pytest.mark.parametrize(("text", "arguments"), ACCEPTED)
def test_arguments_that_fit_are_taken_as_they_are(text: str, arguments: dict[str, Any]) -> None:
    assert run(text) == Checked(arguments)


def test_an_object_in_a_json_string_is_unwrapped_once() -> None:
    assert run('"{\\"path\\":\\"a\\"}"') == Checked({"path": "a"}, repaired=True)
    assert refused(json.dumps(json.dumps("{}"))).klass == "schema_repair_rejected"


def test_unwrapped_arguments_are_checked_like_others() -> None:
    assert refused('"{\\"n\\": true}"').klass == "wrong_type"


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = [
    ("{", "invalid_json", ["character 1"]),
    ('{"path": "a"} x', "invalid_json", ["character 14", "extra data"]),
    ('{"path": 1, "path": 2}', "invalid_json", ["'path'", "twice", "character 12"]),
    ('{"p": 1, "\\u0070": 2}', "invalid_json", ["'p'", "twice"]),
    ('{"x": NaN}', "invalid_json", ["NaN", "character 6"]),
    ('{"x": -Infinity}', "invalid_json", ["-Infinity", "character 6"]),
    ('{"x": 1e999}', "invalid_json", ["1e999"]),
    ('{"n": ' + "1" * 5000 + "}", "invalid_json", ["character 6"]),
    ('{"path": "\\ud83d"}', "invalid_json", ["surrogate", "character 9"]),
    ("[" * 300 + "]" * 300, "invalid_json", ["deeper", "character 200"]),
    ("[" * 100_000, "invalid_json", ["deeper"]),
    ('"[1]"', "schema_repair_rejected", ["object"]),
    ('"hello"', "schema_repair_rejected", ["object"]),
    ('"{\\"a\\":1,\\"a\\":2}"', "schema_repair_rejected", ["object"]),
    ("[1]", "wrong_type", ["$ must be of type object, not array"]),
    ("3", "wrong_type", ["$ must be of type object, not integer"]),
    ("null", "wrong_type", ["$ must be of type object, not null"]),
    ('{"n": true}', "wrong_type", ["$.n", "integer", "boolean"]),
    ('{"x": false}', "wrong_type", ["$.x", "number", "boolean"]),
    ('{"n": 3.0}', "wrong_type", ["$.n", "integer", "number (3.0)"]),
    ('{"n": "3"}', "wrong_type", ["$.n", "integer", "string"]),
    ('{"tags": ["a", 1]}', "wrong_type", ["$.tags[1]", "string", "integer"]),
    ('{"inner": {"name": 1}}', "wrong_type", ["$.inner.name", "string", "integer"]),
    ('{"counts": {"a": "b"}}', "wrong_type", ["$.counts.a", "integer", "string"]),
    ('{"inner": {}}', "missing_required", ["$.inner.name", "allowed names are: name"]),
    ('{"inner": {"name": " "}}', "empty_required_string", ["$.inner.name"]),
    ('{"inner": {"name": "a", "nam": 1}}', "unexpected_property", ["$.inner.nam", "'name'"]),
    ('{"zzz": 1}', "unexpected_property", ["$.zzz", "allowed names are: any, counts"]),
    ('{"mode": "medium", "n": 11}', "schema_violation", ["$.mode: enum", '"fast"', "$.n: maximum", "10"]),
    ('{"maybe": "x"}', "schema_violation", ["$.maybe: anyOf", '{"type":"integer"},{"type":"null"}']),
    ('{"either": 1}', "schema_violation", ["$.either: type", "string"]),
    ('{"free": {"a": "x"}}', "schema_violation", ["$.free.a"]),
    ('{"free": {"b": 1}}', "schema_violation", ["$.free", "'b'"]),
    ('{"pair": ["x"]}', "schema_violation", ["$.pair[0]"]),
]


@pytest.mark.parametrize(("text", "klass", "named"), REFUSED)
def test_a_refusal_has_its_class_and_names_what_is_wrong(text: str, klass: str, named: list[str]) -> None:
    found = refused(text)
    assert found.klass == klass
    assert [part for part in named if part not in found.text] == []


def test_a_misspelt_required_name_is_named_with_the_right_one() -> None:
    found = refused('{"paht": "a"}', required=["path"])
    assert found.klass == "missing_required"
    assert "$.paht is not allowed; did you mean 'path'?" in found.text
    assert "$.path is missing" in found.text


def test_all_flaws_of_one_call_are_told_in_the_order_of_their_classes() -> None:
    found = refused('{"zzz": 1, "text": "", "n": "x", "path": " "}', required=["path", "text", "flag"])
    classes = ["wrong_type", "missing_required", "empty_required_string", "unexpected_property"]
    assert found.klass == "wrong_type"
    assert sorted(classes, key=found.text.index) == classes
    assert "$.text" not in found.text


@pytest.mark.parametrize("value", ['""', '" \\n"'])
def test_a_required_text_of_white_space_is_refused_unless_the_schema_takes_none(value: str) -> None:
    assert refused(f'{{"path": {value}}}', required=["path"]).klass == "empty_required_string"
    assert isinstance(run(f'{{"text": {value}}}', required=["text"]), Checked)


def test_a_required_name_that_no_property_describes_may_be_empty_of_type_only() -> None:
    parameters = {"type": "object", "required": ["q"]}
    assert isinstance(check(spec(parameters), '{"q": 1}', None, compiled(parameters, "q")), Checked)
    found = check(spec(parameters), "{}", None, compiled(parameters, "q"))
    assert isinstance(found, Refused)
    assert found.text.endswith("$.q is missing; the allowed names are: none")


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_empty_arguments_of_an_unfinished_step_are_not_run_as_none(reason: str) -> None:
    assert refused("", reason).klass == "invalid_json"
    assert isinstance(run("{}", reason), Checked)


def test_a_refusal_after_a_cut_says_so() -> None:
    assert refused('{"path": "a', "length").text.endswith("; the output was cut")
    assert "was cut" not in refused('{"path": "a', "content_filter").text
    assert "was cut" not in refused('{"path": "a', "tool_use").text


def test_odd_schemas_are_left_to_the_compiled_one() -> None:
    odd = {"type": "object", "properties": 3, "required": True, "additionalProperties": {"type": "weird"}}
    seen: list[Any] = []

    def validate(value: Any) -> tuple[()]:
        seen.append(value)
        return ()

    assert check(spec(odd), '{"a": 1}', None, validate) == Checked({"a": 1})
    assert seen == [{"a": 1}]


# -- tools that are not there ------------------------------------------------------------------------------------------


def test_an_unknown_tool_is_refused_with_the_closest_name() -> None:
    found = unknown_tool("raed_file", ["write_file", "read_file"])
    assert found == Refused("unknown_tool", "unknown_tool: there is no tool 'raed_file'; did you mean 'read_file'?")


def test_a_tool_unlike_all_others_is_refused_with_all_names() -> None:
    assert unknown_tool("zzz", ["b", "a"]).text == "unknown_tool: there is no tool 'zzz'; the tools are: a, b"
    assert unknown_tool("zzz", []).text == "unknown_tool: there is no tool 'zzz'"


def test_a_tool_outside_the_allowlist_is_not_permitted() -> None:
    found = forbidden_tool("read_file", ["read_files"])
    assert found.klass == "unknown_tool"
    assert found.text == "unknown_tool: the tool 'read_file' is not permitted here; did you mean 'read_files'?"


# -- strict JSON -------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_all_json_is_read_as_the_standard_library_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse(text) == json.loads(text)


@given(st.text(alphabet='{}[]:,"\\ \n-0123456789.eEabtrufnlsNIiy\ud800', max_size=30))
def test_any_text_is_read_or_refused_with_a_position_inside_it(text: str) -> None:
    flaw = None
    try:
        parse(text)
    except JsonFlaw as error:
        flaw = error
    assert flaw is None or 0 <= flaw.position <= len(text)


def test_json_may_nest_as_deep_as_the_limit() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(JsonFlaw):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@given(json_values)
def test_a_value_is_the_same_as_itself_read_again(value: Any) -> None:
    assert same(value, json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1], [True], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": [None]}, {"b": [None], "a": 1.0}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ({}, [], False),
        ("1", 1, False),
        (None, False, False),
    ],
)
def test_equality_is_that_of_json(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal
    assert same(right, left) is equal


# -- schemas -----------------------------------------------------------------------------------------------------------

HOPELESS = [
    {"type": "obj"},
    {"type": "object", "properties": 3},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "$ref": "#/nope"},
    {"type": "object", "$ref": "http://localhost:1/schema"},
    {"type": "object", "$ref": "file:///etc/passwd"},
    {"type": "object", "const": object()},
    {"type": "object", 3: 3},
    {"type": "object", "title": "\ud800"},
]


@pytest.mark.parametrize("schema", HOPELESS)
def test_a_schema_that_does_not_compile_is_a_definition_error_that_names_the_tool(schema: dict[Any, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match="'read'"):
        compiled(schema, "read")


def test_a_schema_that_nests_without_end_is_a_definition_error() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["not"] = schema
    with pytest.raises(ToolDefinitionError):
        compiled(schema, "read")


def violations(validate: Validate, value: Any) -> list[tuple[str, str]]:
    return [(found.path, found.keyword) for found in validate(value)]


def test_violations_inside_references_have_the_path_of_the_value() -> None:
    part = {"oneOf": [{"type": "integer"}]}
    validate = compiled({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": part}}, "t")
    assert violations(validate, {"a": "x"}) == [("$.a", "oneOf")]
    assert '[{"type":"integer"}]' in validate({"a": "x"})[0].wanted
    assert validate({"a": 1}) == ()


def test_a_reference_into_a_schema_of_its_own_id_is_told_without_its_text() -> None:
    part = {"$id": "z", "oneOf": [{"type": "integer"}]}
    schema = {"$id": "http://x/y", "type": "object", "properties": {"a": {"$ref": "z"}}, "$defs": {"A": part}}
    (found,) = compiled(schema, "t")({"a": "x"})
    assert (found.path, found.keyword) == ("$.a", "oneOf")
    assert "integer" not in found.wanted


def test_a_violation_shows_neither_the_value_nor_a_schema_without_end() -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"const": "y" * 1000}]}, "b": {"maxLength": 1}}}
    texts = [str(found) for found in compiled(schema, "t")({"a": "x" * 1000, "b": "secret"})]
    assert max(map(len, texts)) < MAX_SHOWN + 200
    assert "secret" not in "".join(texts)


def test_a_pattern_that_backtracks_without_end_ends() -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    assert violations(compiled(schema, "t"), {"a": "a" * 50 + "b"}) == [("$.a", "pattern")]


def test_the_keys_of_a_schema_have_one_order_at_every_depth() -> None:
    schema = {
        "title": "T",
        "$defs": {"b": {"type": "object", "title": "B"}, "a": {}},
        "required": ["type"],
        "additionalProperties": False,
        "properties": {
            "z": {"description": "z", "type": "string", "enum": ({"b": 1, "a": [{"d": 1, "c": 2}]},)},
            "type": {"items": [{"title": "i", "type": "null"}], "type": "array", "default": {"required": 1, "a": 2}},
        },
        "type": "object",
        "anyOf": ({"title": "x", "type": "object"},),
    }
    text = json.dumps(ordered(schema))
    assert text == (
        '{"type": "object", "properties": {"type": {"type": "array", "default": {"a": 2, "required": 1}, '
        '"items": [{"type": "null", "title": "i"}]}, "z": {"type": "string", "description": "z", '
        '"enum": [{"a": [{"c": 2, "d": 1}], "b": 1}]}}, "required": ["type"], "additionalProperties": false, '
        '"$defs": {"a": {}, "b": {"type": "object", "title": "B"}}, '
        '"anyOf": [{"type": "object", "title": "x"}], "title": "T"}'
    )
    assert ordered(schema) == json.loads(text)


@given(st.permutations(list(PARAMETERS["properties"].items())))  # type: ignore[attr-defined]
def test_equal_schemas_have_equal_bytes(properties: list[tuple[str, Any]]) -> None:
    shuffled = {"additionalProperties": False, "properties": dict(properties), "type": "object"}
    assert json.dumps(ordered(shuffled)) == json.dumps(ordered(PARAMETERS))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"input": "*** patch"}', {"text": "*** patch"}),
        ('{"text": "*** patch"}', {"text": "*** patch"}),
        (r'"{\"input\": \"x\"}"', {"text": "x"}),
    ],
)
def test_what_a_freeform_tool_was_given_raw_is_its_one_argument(text: str, arguments: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    freeform = ToolSpec(name="patch", description="", parameters=schema, freeform_field="text")
    found = check(freeform, text, None, compiled(schema, "patch"))
    assert isinstance(found, Checked)
    assert found.arguments == arguments
    refusal = check(freeform, '{"input": 5}', None, compiled(schema, "patch"))
    assert isinstance(refusal, Refused)
    assert "text" in refusal.text
