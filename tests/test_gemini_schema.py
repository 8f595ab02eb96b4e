"""JSON schemas in the subset that Gemini takes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.providers.gemini.schema import translated

PLAIN = {"type": "object"}
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"$schema": "x", "$id": "y", "$comment": "z", "x-order": 1, **PLAIN}, PLAIN),
        ({"additionalProperties": False, "examples": [{}], **PLAIN}, PLAIN),
        ({"type": "integer", "multipleOf": 2, "exclusiveMinimum": 0, "minimum": 1}, {"type": "integer", "minimum": 1}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"const": None}, {"nullable": True}),
        ({"enum": ["a", None], "type": ["string", "null"]}, {"enum": ["a"], "type": "string", "nullable": True}),
        ({"type": ["string", "null"], "minLength": 1}, {"type": "string", "minLength": 1, "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [TEXT, {"type": "integer"}]}),
        ({"type": ["null"]}, {"nullable": True}),
        ({"type": "null"}, {"type": "null"}),
        ({"anyOf": [TEXT, {"type": "null"}], "description": "d"}, {"description": "d", "nullable": True, **TEXT}),
        (
            {"oneOf": [TEXT, {"type": "integer"}, {"type": "null"}]},
            {"anyOf": [TEXT, {"type": "integer"}], "nullable": True},
        ),
        ({"anyOf": [{"type": "null"}]}, {"nullable": True}),
        ({"anyOf": [TEXT, True]}, {"anyOf": [TEXT, {}]}),
        ({"items": {"const": 1}}, {"items": {"enum": [1]}}),
        ({"items": [1]}, {"items": [1]}),
        ({"properties": 5, "anyOf": 5, "allOf": 5}, {"properties": 5, "anyOf": 5, "allOf": 5}),
        ({"default": {"examples": 1, "$ref": "#"}}, {"default": {"examples": 1, "$ref": "#"}}),
    ],
)
def test_keywords_are_translated(schema: Any, sent: Any) -> None:
    assert translated(schema) == sent


def test_properties_that_are_called_like_keywords_stay() -> None:
    names = ["examples", "additionalProperties", "x-rate", "const", "$ref", "$schema", "anyOf", "default", "properties"]
    schema = {"type": "object", "properties": dict.fromkeys(names, TEXT), "required": names}
    assert translated(schema) == {**schema, "properties": dict(sorted(schema["properties"].items()))}  # type: ignore[attr-defined]


def test_references_are_replaced_by_what_they_name() -> None:
    schema = {
        "$defs": {"a/b~": {"type": "string", "description": "old"}, "pair": {"items": {"$ref": "#/$defs/a~1b~0"}}},
        "properties": {
            "one": {"$ref": "#/$defs/a~1b~0", "description": "new"},
            "two": {"$ref": "#/%24defs/pair"},
            "three": {"$ref": "#/allOf/0"},
        },
        "allOf": [{"required": ["one"]}],
    }
    assert translated(schema) == {
        "properties": {
            "one": {"type": "string", "description": "new"},
            "two": {"items": {"type": "string", "description": "old"}},
            "three": {"required": ["one"]},
        },
        "required": ["one"],
    }


@pytest.mark.parametrize("reference", ["#/$defs/none", "other.json#/a", "#/allOf/7", "#/type/0"])
def test_a_reference_that_leads_nowhere_is_a_plain_object(reference: str) -> None:
    assert translated({"type": "array", "items": {"$ref": reference, "title": "t"}})["items"] == {**PLAIN, "title": "t"}


def test_a_cycle_becomes_a_plain_object() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "up": {"$ref": "#"}}}
    sent = translated({"$defs": {"node": node}, "properties": {"head": {"$ref": "#/$defs/node"}}})
    head = sent["properties"]["head"]
    assert head["properties"]["next"] == PLAIN
    assert head["properties"]["up"] == {"properties": {"head": PLAIN}}


def test_a_schema_that_would_grow_without_bound_is_cut_with_plain_objects() -> None:
    twice = {f"{n}": {"properties": {side: {"$ref": f"#/$defs/{n + 1}"} for side in "ab"}} for n in range(99)}
    sent = json.dumps(translated({"$defs": twice, "properties": {"p": {"$ref": "#/$defs/0"}}}))
    assert len(sent) < 100_000
    chain = {f"{n}": {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(999)}
    assert json.dumps(translated({"$defs": chain, "items": {"$ref": "#/$defs/0"}})).count("items") == 51


def test_parts_that_all_hold_become_one_schema() -> None:
    parts = [
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"], "title": "first"},
        {"properties": {"b": PLAIN, "c": TEXT}, "required": ["a", "c"], "title": "second"},
    ]
    assert translated({"allOf": parts}) == {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT, "c": TEXT},
        "required": ["a", "c"],
        "title": "first",
    }


_SCHEMAS: Any = st.recursive(
    st.sampled_from([TEXT, {"const": 1}, {"$ref": "#/$defs/d"}, {"$ref": "#"}, {"type": ["integer", "null"]}, True]),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from(["a", "$ref", "const"]), inner)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"items": inner}),
    ),
    max_leaves=6,
)


def keywords(schema: Any) -> set[str]:
    """The keywords of a schema, names of properties apart."""
    found: set[str] = set()
    for name, part in schema.items():
        found.add(name)
        inner = (
            part.values() if name == "properties" else part if name == "anyOf" else [part] if name == "items" else ()
        )
        for schema_inside in inner:
            found |= keywords(schema_inside)
    return found


@given(_SCHEMAS, _SCHEMAS)
@settings(max_examples=100)
def test_every_schema_is_translated_into_known_words_and_the_same_way_each_time(schema: Any, other: Any) -> None:
    root = {"type": "object", "properties": {"p": schema}, "$defs": {"d": other}}
    sent = translated(root)
    assert keywords(sent) <= {"type", "properties", "anyOf", "items", "enum", "nullable"}
    assert translated(root) == sent
