"""Laws of compaction over random turns: what requests hold, what the log keeps, how each compaction ends."""

from typing import Any

import attrs
import hypothesis
import trio
from hypothesis import strategies as st
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import compaction, events, inference, providers, stores, transcript
from roder_trio.logic.estimate import strings
from roder_trio.logic.window import History
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.usage import Purpose
from tests.ledger_support import AGAIN, Noted, cold, compactions, ends_of, item, meta
from tests.turn_support import DONE, Scene, failure, folded_usage, history_of, one_thread, say, settings, used

TARGET = EngineTarget("dialect", "laws", "https://here")


@attrs.frozen
class Act:
    """One stream: how much it says, and how it ends."""

    size: int
    ending: str
    band: bool = False


sampled = st.builds(
    Act, st.sampled_from([0, 40, 400, 900]), st.sampled_from(["done", "again", "drop", "steer", "stop"]), st.booleans()
)
compacted = st.builds(
    Act,
    st.sampled_from([0, 100, 600]),
    st.sampled_from(["done", "holds", "drop", "no", "steer", "meddle", "stop", "none", "none", "large"]),
)


class LawEngine(providers.ScriptedEngine):
    """Checks each request against the log as the store holds it at that moment.

    What writes its summaries is an engine of its own, which plays the compactions' acts, too.
    """

    def __init__(self, streams: list[Act], compactions: list[Act], required: bool) -> None:
        self.writer = providers.ScriptedEngine(
            [*[self._written(act) for act in compactions for _ in range(2)], *[[say("w"), DONE]] * 60]
        )
        self.orders, self.to_do = trio.open_memory_channel[str](1_000)
        self.scene: Scene | None = None
        self.window: list[Any] | None = None
        self.seen = 0
        self.boundaries = 0
        self.broken = Noted()
        super().__init__(
            [*map(self._sampled, streams), *[[DONE]] * 60],
            id="laws",
            compact=[*map(self._compacted, compactions), *[[self._boundary(0, False), DONE]] * 60],
            requires_native_compaction=required,
            target=TARGET,
        )

    def stream_turn(self, context: Any, request: Any) -> Any:
        if context.purpose is Purpose.SUMMARY:
            return self.writer.stream_turn(context, request)
        with self.broken:
            self._check_sampled(request)
        return super().stream_turn(context, request)

    def _check_sampled(self, request: Any) -> None:
        log = self._log()
        assert list(request.transcript) == list(log.request(TARGET))
        said = [entry for entry in log.items if isinstance(entry, transcript.UserMessage)][-1]
        told = list(request.transcript)
        assert said in told or any(said.text in found for found in strings([e.payload for e in told if _opaque(e)]))

    def compact_turn(self, context: Any, request: Any) -> Any:
        with self.broken:
            self._check_compacted(request)
        return super().compact_turn(context, request)

    def _check_compacted(self, request: Any) -> None:
        log = self._log()
        assert self.scene is not None
        began = self.scene.of(events.ContextCompactionStarted)[-1].compaction_id
        if self.window is None or self.window[0] != began:
            self.window = [began, list(log.window(TARGET))]
        assert list(request.transcript) == self.window[1]

    def _log(self) -> History:
        assert self.scene is not None
        held = self.scene.store._active[self.scene.id].records
        found = [r.event.item for r in held if isinstance(r.event, events.TranscriptItemAppended)]
        assert len(found) >= self.seen
        self.seen = len(found)
        return History(found)

    def _boundary(self, size: int, holds: bool) -> Any:
        def make(request: Any) -> inference.ProviderMetadata:
            self.boundaries += 1
            found = [item(f"b{self.boundaries}") | {"encrypted_content": "s" * (size + 1)}]
            said = [entry.text for entry in request.transcript if isinstance(entry, transcript.UserMessage)]
            kept = [{"type": "message", "content": f"<{text}>"} for text in said] if holds else []
            return inference.ProviderMetadata({"output": found, "compacted_input": [*found, *kept]})

        return make

    def _order(self, name: str) -> Any:
        return lambda request: self.orders.send_nowait(name)

    def _sampled(self, act: Act) -> list[Any]:
        band = [inference.Compaction("completed", None, item(f"band{id(act)}"))] if act.band else []
        parts = [used(act.size), *band, say("x" * act.size)]
        return (
            parts
            + {
                "done": [DONE],
                "again": [AGAIN, DONE],
                "drop": [failure()],
                "steer": [self._order("steer"), NEVER_ENDS],
                "stop": [self._order("stop"), NEVER_ENDS],
            }[act.ending]
        )

    def _compacted(self, act: Act) -> list[Any] | None:
        if act.ending == "none":
            return None
        parts = [used(act.size + 1), self._boundary(act.size, act.ending == "holds")]
        return (
            parts
            + {
                "done": [DONE],
                "holds": [DONE],
                "drop": [failure()],
                "no": [inference.Failed("no")],
                "steer": [self._order("steer"), NEVER_ENDS],
                "meddle": [self._order("meddle"), 0.1, DONE],
                "stop": [self._order("stop"), NEVER_ENDS],
                "large": [failure("CONTEXT_WINDOW_EXCEEDED")],
            }[act.ending]
        )

    def _written(self, act: Act) -> list[Any]:
        """A draft: an act of a compaction, as text."""
        return [
            used(act.size + 1),
            say("s" * (act.size // 4) + "w"),
            *{
                "drop": [failure()],
                "no": [inference.Failed("no")],
                "steer": [self._order("steer"), NEVER_ENDS],
                "meddle": [self._order("meddle"), 0.1, DONE],
                "stop": [self._order("stop"), NEVER_ENDS],
                "large": [failure("REQUEST_TOO_LARGE")],
            }.get(act.ending, [DONE]),
        ]


def _opaque(entry: Any) -> bool:
    return isinstance(entry, transcript.ProviderMetadata)


async def carry_out(engine: LawEngine, scene: Scene, turn_id: str) -> None:
    steers = 0
    async for order in engine.to_do:
        if order == "steer":
            steers += 1
            await scene.steer(turn_id, f"steer {steers} of {turn_id}")
        elif order == "stop":
            await scene.interrupt(turn_id)
        else:
            await scene.runtime.persist_turn_item(scene.id, "host", transcript.UserMessage("from the host"))


async def obey(streams: list[Act], acts: list[Act], threshold: int, required: bool) -> None:
    store = stores.MemoryThreadStore()
    engine = LawEngine(streams, acts, required)
    config = settings(
        auto_compact_token_limit=threshold, provider_retry_initial_backoff=0.0, provider_retry_max_attempts=2
    )
    async with one_thread(engine=engine, store=store, config=config) as scene:
        scene.store = engine_store = store
        engine.scene = scene
        for number in range(3):
            turn_id = await scene.start(f"message {number}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry_out, engine, scene, turn_id)
                await scene.wait(turn_id)
                nursery.cancel_scope.cancel()
        assert engine.broken.errors == []
        assert all(len(ends) == 1 for ends in told_ends(scene).values())
        again = await cold(engine_store, scene.id)
        assert again.fold == folded_usage(again.snapshot) == await meta(scene)
        history = await scene.history()
        assert history == history_of(again.snapshot)
        steers_in_order(scene, history)
        summaries_shrink(scene)
        committed = {id for id, ends in told_ends(scene).items() if ends == ["Recorded"]}
        in_band = sum(event.strategy == "in_band" for event in scene.of(events.ContextCompactionRecorded))
        assert sum(map(compaction.is_boundary, history)) == len(committed) + in_band


def told_ends(scene: Scene) -> dict[str, list[str]]:
    in_band = [e for e in compactions(scene) if getattr(e, "strategy", None) == "in_band"]
    seen = scene._seen
    kept = [envelope for envelope in scene.seen if envelope.event not in in_band]
    try:
        scene._seen = kept
        return ends_of(scene)
    finally:
        scene._seen = seen


def summaries_shrink(scene: Scene) -> None:
    """Each summary left fewer tokens than there were."""
    began = {event.compaction_id: event.estimated_tokens for event in scene.of(events.ContextCompactionStarted)}
    for event in scene.of(events.ContextCompactionRecorded):
        assert event.strategy in ("native", "in_band") or event.estimated_tokens < began[event.compaction_id]


def steers_in_order(scene: Scene, history: list[Any]) -> None:
    """Each steer was delivered, in order, or handed back."""
    accepted = [event.message.text for event in scene.of(events.SteerAccepted)]
    said = [entry.text for entry in history if isinstance(entry, transcript.UserMessage) and "steer" in entry.text]
    returned = [steer.message.text for end in scene.ends for steer in getattr(end, "undelivered_steers", ())]
    assert sorted(said + returned) == sorted(accepted)
    assert said == [text for text in accepted if text in said]


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    streams=st.lists(sampled, max_size=8),
    acts=st.lists(compacted, max_size=8),
    threshold=st.sampled_from([1, 100, 250]),
    required=st.booleans(),
)
def test_the_laws_of_compaction(streams, acts, threshold, required):
    trio.run(obey, streams, acts, threshold, required, clock=MockClock(autojump_threshold=0))


def test_the_laws_are_put_to_a_test_at_all():
    """A run with one of each: what the law is about does happen."""
    streams = [Act(900, "again", True), Act(400, "drop"), Act(40, "steer"), Act(0, "done"), Act(400, "stop")]
    acts = [Act(100, "steer"), Act(100, "meddle"), Act(0, "drop"), Act(0, "holds"), Act(600, "no"), Act(0, "done")]
    trio.run(obey, streams, acts, 1, False, clock=MockClock(autojump_threshold=0))
    acts = [Act(0, "none"), Act(0, "large"), Act(0, "none")]
    trio.run(obey, streams, acts, 1, False, clock=MockClock(autojump_threshold=0))
    assert rt.compaction.is_boundary(transcript.ProviderMetadata({"output": [item()]}))
