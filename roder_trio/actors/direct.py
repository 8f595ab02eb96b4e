"""A compaction in a caller's own task: it needs no free slot, and never outlives the runtime."""

from collections.abc import Sequence
from typing import Any

import attrs
import trio

from roder_trio.actors._resident import ResidentThread
from roder_trio.actors._route import Route
from roder_trio.actors._services import Services
from roder_trio.actors.compaction import Compaction
from roder_trio.actors.directory import Directory
from roder_trio.errors import RuntimeClosed, StorageError
from roder_trio.logic.compaction import Kept
from roder_trio.logic.window import Window
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import BeginDirectCompaction, RecordCompaction, TurnPlan
from roder_trio.schema.compaction import NativeCompactionOutcome, Preempted, Unsupported
from roder_trio.schema.event import ContextCompactionCancelled
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.schema.transcript import TranscriptItem


class DirectCompactions:
    """The scopes of all compactions that run in callers' tasks."""

    def __init__(self, services: Services, directory: Directory) -> None:
        self._services = services
        self._directory = directory
        self._scopes: set[trio.CancelScope] = set()
        self._left = trio.Event()
        self._closing = False

    async def run(
        self,
        thread_id: str,
        plan: TurnPlan,
        engine: InferenceEngine,
        transcript: Sequence[TranscriptItem],
        hint: str | None,
    ) -> NativeCompactionOutcome:
        """Compact the thread's window, if `transcript` still is that window.

        Cancelling drops the candidate, its usage stays counted. Raises ThreadNotFound, ProviderFailure, StorageError,
        and RuntimeClosed if the runtime's exit ends it.
        """
        thread = await self._directory.resident(thread_id)
        with self._directory.pinned(thread), trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._closing:
                scope.cancel()
            try:
                return await self._compact(thread, plan, engine, transcript, hint, scope)
            finally:
                self._scopes.discard(scope)
                self._left.set()
        raise RuntimeClosed("The runtime was left while it compacted; what that used is counted.")

    async def close(self) -> None:
        """End all of them, and wait until they have left. Cancelled, they end all the same."""
        self._closing = True
        for scope in self._scopes:
            scope.cancel()
        while self._scopes:
            self._left = trio.Event()
            await self._left.wait()
        await trio.lowlevel.checkpoint()

    async def _compact(
        self,
        thread: ResidentThread,
        plan: TurnPlan,
        engine: InferenceEngine,
        transcript: Sequence[TranscriptItem],
        hint: str | None,
        scope: trio.CancelScope,
    ) -> NativeCompactionOutcome:
        thread_id = thread.thread_id
        begun = await self._directory.ask(thread_id, BeginDirectCompaction(transcript, engine.target))
        if begun is None:
            return Preempted(Window(list(transcript)))
        view, metadata = begun

        async def report(payload: Any) -> Any:
            with trio.move_on_after(self._services.config.deadlines.append_grace, shield=True):
                return await self._directory.ask(thread_id, payload)
            raise StorageError("The thread did not store a compaction's report in time; its store may hang.")

        compaction = Compaction(
            services=self._services,
            thread_id=thread_id,
            plan=self._as_the_thread_would(plan, engine, metadata),
            engine=engine,
            view=view,
            trigger="direct",
            report=report,
            cut=lambda: scope.cancel_called,
            cancel_reason=lambda: "interrupted",
            attached_goal=lambda: None,
            hint=hint,
        )
        try:
            outcome = await compaction.run()
        except StorageError:
            # What could not be stored in time may still land; then it needs an end.
            ended = ContextCompactionCancelled(compaction.compaction_id, "interrupted")
            thread.mailbox.post(RecordCompaction(plan.turn_id, ended))
            raise
        return Unsupported() if isinstance(outcome, Kept) else outcome

    def _as_the_thread_would(self, plan: TurnPlan, engine: InferenceEngine, metadata: ThreadMetadata) -> TurnPlan:
        """Return the plan with what the thread's next turn would run with, as far as the model knows it."""
        row = self._services.engine_facts[plan.provider].models.get(plan.model)
        mine = attrs.evolve(
            plan,
            reasoning=metadata.reasoning or self._services.config.default_reasoning,
            developer_instructions=metadata.developer_instructions,
            tool_allowlist=metadata.tool_allowlist,
        )
        return Route(engine, plan.provider, plan.model, row).plan(mine)
