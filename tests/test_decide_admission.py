"""Whether a turn or a manual compaction may begin: the checks, their order, what is chosen."""

from typing import Any

import attrs
import pytest

from roder_trio.errors import (
    BadWorkspace,
    CommandRefused,
    EmptyMessage,
    RuntimeDraining,
    ThreadBusy,
    UnknownProvider,
    UnsupportedOption,
)
from roder_trio.logic.thread.admission import ModelUnknown, WorkspaceUnchecked
from roder_trio.logic.thread.draft import AppendItem, Emit
from roder_trio.logic.thread.facts import DEFERRED, Decision, Phase, Slot
from roder_trio.schema import command as c
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import TurnStarted
from roder_trio.schema.transcript import (
    Image,
    ProviderMetadata,
)
from tests.thread_support import (
    USER,
    Desk,
    answer,
    in_phase,
    start,
)

# -- admission ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("running", ThreadBusy),
        ("finishing", ThreadBusy),
        ("told to stop", DEFERRED),
        ("interrupted", DEFERRED),
        ("ended", DEFERRED),
        ("compacting", DEFERRED),
    ],
)
def test_a_turn_or_compaction_is_refused_while_a_turn_runs_and_waits_while_the_slot_closes(phase, expected):
    desk = in_phase(phase)
    assert answer(desk, start("v")) == expected
    assert answer(desk, c.Compact("k2", None)) == expected


def test_a_busy_thread_names_its_turn():
    desk = in_phase("running")
    with pytest.raises(ThreadBusy) as raised:
        desk.decide(start("v"))
    assert (raised.value.turn_id, raised.value.automatic) == ("u", False)
    assert desk.state.open_turn is not None
    desk.state.open_turn.automatic = True
    with pytest.raises(ThreadBusy) as raised:
        desk.decide(start("v"))
    assert raised.value.automatic


def test_a_turn_opens_with_its_start_and_its_message_in_one_append():
    desk = Desk()
    decision = desk.decide(start(reasoning="low", instructions="be brief"))
    plan = c.TurnPlan(
        turn_id="u", provider="one", model="m", reasoning="low",
        options=c.TurnOptions(reasoning="low", instructions="be brief"), message=USER,
    )  # fmt: skip
    assert decision == Decision(
        (Emit(TurnStarted("one", "m", "low"), "u"), AppendItem("u", USER)), (c.StartJob(plan),), "u"
    )


def test_another_model_than_before_is_noted_behind_the_message():
    desk = Desk()
    desk.start()
    desk.do(c.FinalStep("u", (), None))
    desk.do(c.JobEnded("u", c.Finished()))
    assert len(desk.decide(start("v")).drafts) == 2
    switch = {
        "kind": "model_switch", "provider": "two", "model": "n", "previous_provider": "one", "previous_model": "m",
    }  # fmt: skip
    drafts = desk.decide(start("v", provider="two", model="n")).drafts
    assert drafts[1:] == (AppendItem("v", USER), AppendItem("v", ProviderMetadata(switch)))


def test_the_first_check_that_fails_is_told_and_changes_nothing():
    """Every request here fails all checks from some number on; the earliest wins."""
    config = RuntimeConfig(workspace="/there")
    desk = Desk(config=config, draining=True)
    everything: dict[str, Any] = {"text": " ", "provider": "none", "reasoning": "low"}
    desk.slot = Slot(Phase.RUNNING, "v")
    steps: list[tuple[dict[str, Any], type[CommandRefused]]] = [
        ({}, RuntimeDraining),
        ({"draining": False}, EmptyMessage),
        ({"text": "hello"}, WorkspaceUnchecked),
        ({"existing": "/there"}, UnknownProvider),
        ({"provider": "two", "images": (Image("x"),)}, ModelUnknown),
        ({"model": "n"}, UnsupportedOption),
        ({"provider": "one", "model": "m", "reasoning": "max"}, UnsupportedOption),
        ({"reasoning": "low"}, ThreadBusy),
    ]
    for change, expected in steps:
        everything |= change
        desk.given["draining"] = everything.get("draining", True)
        command = attrs.evolve(
            start(**{name: everything[name] for name in everything if name not in ("draining", "existing")}),
            existing_directory=everything.get("existing"),
        )
        assert answer(desk, command) is expected
    assert (desk.records, desk.state.next_seq) == ([], 1)


def test_a_message_of_images_only_is_one_for_an_engine_that_takes_them():
    image = (Image("data:x"),)
    assert isinstance(Desk().decide(start(text=" ", images=image)), Decision)
    with pytest.raises(UnsupportedOption) as raised:
        Desk().decide(start(images=image, provider="two", model="n"))
    assert raised.value.name == "images"


@pytest.mark.parametrize(
    ("of_turn", "of_thread", "of_config", "chosen"),
    [("/a", "/b", "/c", "/a"), (None, "/b", "/c", "/b"), (None, None, "/c", "/c")],
)
def test_the_workspace_that_counts_must_have_been_looked_at(of_turn, of_thread, of_config, chosen):
    desk = Desk(config=RuntimeConfig(workspace=of_config))
    desk.state.metadata = attrs.evolve(desk.state.metadata, workspace=of_thread)
    command = start(workspace=of_turn)
    with pytest.raises(WorkspaceUnchecked) as raised:
        desk.decide(command)
    assert isinstance(raised.value, BadWorkspace)
    assert raised.value.workspace == chosen
    with pytest.raises(WorkspaceUnchecked):
        desk.decide(attrs.evolve(command, existing_directory="/other"))
    assert desk.decide(attrs.evolve(command, existing_directory=chosen)).reply == "u"


@pytest.mark.parametrize(
    ("of_turn", "of_thread", "of_config", "chosen"),
    [
        ({}, {}, {}, ("one", "m", None)),
        ({}, {}, {"default_provider": "two", "default_model": "n"}, ("two", "n", None)),
        ({}, {"provider": "two", "model": "n"}, {"default_provider": "one", "default_model": "x"}, ("two", "n", None)),
        ({"provider": "one"}, {"provider": "two", "model": "n", "reasoning": "low"}, {}, ("one", "n", "low")),
        ({"model": "x", "reasoning": "high"}, {"model": "n", "reasoning": "low"}, {}, ("one", "x", "high")),
        ({}, {}, {"default_reasoning": "high"}, ("one", "m", "high")),
    ],
)
def test_provider_model_and_reasoning_are_chosen_each_by_itself(of_turn, of_thread, of_config, chosen):
    desk = Desk(config=RuntimeConfig(**of_config))
    desk.state.metadata = attrs.evolve(desk.state.metadata, developer_instructions="be kind", **of_thread)
    [effect] = desk.decide(start(**of_turn)).effects
    assert isinstance(effect, c.StartJob)
    plan = effect.plan
    assert (plan.provider, plan.model, plan.reasoning, plan.developer_instructions) == (*chosen, "be kind")


def test_what_an_engine_does_not_know_is_refused():
    with pytest.raises(UnknownProvider, match="one, two") as unknown:
        Desk().decide(start(provider="three"))
    assert unknown.value.provider == "three"
    with pytest.raises(ModelUnknown) as no_model:
        Desk().decide(start(provider="two"))
    assert (no_model.value.name, no_model.value.provider) == ("model", "two")
    with pytest.raises(UnsupportedOption, match="low, high"):
        Desk().decide(start(reasoning="max"))
    assert Desk().decide(start(model="unlisted", reasoning="max")).reply == "u"


def test_a_manual_compaction_takes_the_slot_and_stores_nothing():
    desk = Desk()
    [effect] = desk.decide(c.Compact("k", "names")).effects
    assert effect == c.StartCompaction(c.TurnPlan(turn_id="compact-k", provider="one", model="m"), "k", "names")
    assert desk.do(c.Compact("k", "names")) == "compact-k"
    assert (desk.records, desk.slot.phase) == ([], Phase.COMPACTING)
    with pytest.raises(RuntimeDraining):
        Desk().decide(c.Compact("k", None), draining=True)
    with pytest.raises(UnknownProvider):
        Desk(config=RuntimeConfig(default_provider="gone")).decide(c.Compact("k", None))
