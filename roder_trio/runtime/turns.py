"""Turns: starting, following, steering, interrupting and draining them."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any, TypedDict, Unpack

import attrs
import trio

from roder_trio.actors._reader import Filter
from roder_trio.actors._services import new_id
from roder_trio.actors.cost import EndedTurn
from roder_trio.errors import ActorCrashed, BadWorkspace, RoderTrioError, RuntimeDraining
from roder_trio.logic.output import OutputForm, output_form
from roder_trio.logic.thread.admission import WorkspaceUnchecked
from roder_trio.runtime.cost import CostMethods
from roder_trio.runtime.handle import Turn
from roder_trio.schema import command as c
from roder_trio.schema.transcript import Image, UserMessage
from roder_trio.schema.turn import DrainOutcome, OutputOptions, TurnOutcome

Images = Sequence[Image | str]

_NO_OPTIONS = c.TurnOptions()
"""What turns share that ask for nothing of their own."""


class _TextKeywords(TypedDict, total=False):
    provider: str | None
    model: str | None
    reasoning: str | None
    workspace: str | None
    instructions: str | None
    developer_context: str | None
    service_tier: str | None


class TurnKeywords(_TextKeywords, total=False):
    """What one turn may be asked for; None, or left out, is the thread's own, else the runtime's.

    `provider`, `model`, `reasoning` and `workspace` override the thread's; `instructions` is the system text and
    `developer_context` stands behind the stable prefix; both, `service_tier` and `output` are never stored.
    """

    output: OutputOptions | None


class TurnMethods(CostMethods):
    """What can be done with turns."""

    async def start_turn(
        self,
        thread_id: str,
        message: str,
        *,
        images: Images = (),
        **options: Unpack[TurnKeywords],
    ) -> str:
        """Begin a turn and return its id, once its opening is stored.

        `options` are `provider`, `model`, `reasoning` and `workspace`, which go before the thread's own and those of
        the config; `instructions`, the system text; `developer_context`; `service_tier`; and `output`, the
        `rt.OutputOptions` of its requests.

        Where a job is closing down, or a manual compaction runs, this waits; a turn that waited may still be refused.
        Cancelling withdraws a request that still waits; one that was taken has begun, and runs on. Raises
        RuntimeDraining, ThreadNotFound, ThreadFailed, EmptyMessage, BadWorkspace, UnknownProvider, UnsupportedOption,
        ThreadBusy that names the running turn, StorageError.
        """
        chosen = _options(**options)
        return await self._start(thread_id, new_id(), _message(message, images), chosen)

    async def run_turn(
        self,
        thread_id: str,
        message: str,
        *,
        images: Images = (),
        output_type: Any = None,
        **options: Unpack[TurnKeywords],
    ) -> TurnOutcome:
        """Run a turn to its end and return how it ended; a failed turn is an outcome, not an exception.

        `options` are those of `start_turn`. With `output_type` (an attrs class, a dataclass, a TypedDict, or a JSON
        schema of an object) the answer is checked, repaired at most `output_retries` times, and given as
        `outcome.output`. Cancelling interrupts the turn and waits for its end, at most `turn_exit_grace`. Raises as
        `start_turn`, and TypeError for a type without a schema.
        """
        form = None if output_type is None else output_form(output_type)
        chosen = _options(**options)
        turn_id = new_id()
        try:
            await self._start(thread_id, turn_id, _message(message, images), chosen, form)
            return await self.wait_turn(thread_id, turn_id)
        except trio.Cancelled:
            await self._abandon(thread_id, turn_id)
            raise

    @asynccontextmanager
    async def turn(
        self,
        thread_id: str,
        message: str,
        *,
        images: Images = (),
        **options: Unpack[TurnKeywords],
    ) -> AsyncIterator[Turn]:
        """Run a turn while the block is open, like a nursery: a normal exit waits for the turn's end.

        `options` are those of `start_turn`. Iterate over the handle for the turn's events, as envelopes; its `outcome`
        is set when the block is left. An error or a cancel that leaves the block interrupts the turn first and waits
        for its end, at most `turn_exit_grace`. Raises as `start_turn`.
        """
        chosen = _options(**options)
        self._check_open()
        turn_id = new_id()
        with self._core.broadcast.subscribed(Filter(thread_id, turn_id)) as events:
            handle = Turn(thread_id, turn_id, events)
            try:
                await self._start(thread_id, turn_id, _message(message, images), chosen)
                yield handle
                handle.end(await self.wait_turn(thread_id, turn_id))
            except BaseException:
                handle.end(await self._abandon(thread_id, turn_id))
                raise

    async def wait_turn(self, thread_id: str, turn_id: str) -> TurnOutcome:
        """Wait for a turn's end and return its outcome, also if it ended before. Cancelling leaves the turn alone.

        Raises UnknownTurn, ThreadNotFound, ThreadFailed, StorageError.
        """
        while True:
            try:
                ended: EndedTurn = await self._ask(thread_id, c.WaitTurn(turn_id))
            except ActorCrashed:
                continue
            return await self._priced(thread_id, ended)

    async def steer_turn(self, thread_id: str, turn_id: str, message: str, images: Images = ()) -> None:
        """Give a running turn more input; it is durable when this returns, and will be delivered or handed back.

        A steer preempts sampling, back-off and compaction; during a tool batch it waits. One that is blank, without
        images, does nothing. Raises NoActiveTurn, SteerQueueFull, StorageError.
        """
        self._check_open()
        steer = _message(message, images)
        steer = attrs.evolve(steer, text=steer.text.strip())
        if not steer.text and not steer.images:
            await trio.lowlevel.checkpoint()
            return
        await self._ask(thread_id, c.Steer(turn_id, new_id(), steer))

    async def interrupt_turn(self, thread_id: str, turn_id: str) -> None:
        """Stop a turn at once, keeping what was said; `wait_turn` waits for its end.

        An ended or unknown turn is left alone. Cancelling this stops a running turn all the same. Raises StorageError.
        """
        self._check_open()
        await self._interrupt(thread_id, turn_id, "user")

    async def drain_active_turns(self, grace: float) -> DrainOutcome:
        """Take no new turns, interrupt those that run, and wait at most `grace` seconds until their ends are stored.

        Cancelling stops waiting; turns stay refused until `resume_accepting_turns`. Raises ValueError for a grace that
        is no number of at least 0; turns are taken as before then.
        """
        self._check_open()
        if not isinstance(grace, int | float) or not grace >= 0:
            raise ValueError(f"grace must be a number of seconds of at least 0, not {grace!r}")
        return await self._core.drain("drain", grace)

    def resume_accepting_turns(self) -> None:
        """Take turns again after, or while, a drain."""
        self._check_open()
        self._core.services.lifecycle.resume()

    async def continue_goal(self, thread_id: str) -> str | None:
        """Begin a turn of the thread's goal without a message; returns its id.

        None if there is no active goal, a turn runs, or the runtime takes no turns. Cancelling withdraws a request that
        is still queued; a turn that began goes on. Raises ThreadNotFound, BadWorkspace, UnsupportedOption,
        StorageError.
        """
        self._check_open()
        started: str | None = await self._admit(thread_id, c.ContinueGoal(turn_id=new_id()))
        return started

    # -- how ---------------------------------------------------------------------------------------------------------

    async def _start(
        self,
        thread_id: str,
        turn_id: str,
        message: UserMessage,
        options: c.TurnOptions,
        form: OutputForm | None = None,
    ) -> str:
        self._check_open()
        if self._core.services.lifecycle.draining:
            raise RuntimeDraining
        command = c.StartTurn(turn_id=turn_id, message=message, options=options, output_form=form)
        started: str = await self._admit(thread_id, command)
        return started

    async def _admit(self, thread_id: str, command: c.StartTurn | c.ContinueGoal) -> Any:
        """Ask for a turn; a workspace that the answer hangs on is looked at first."""
        while True:
            try:
                return await self._ask_for_job(thread_id, command)
            except WorkspaceUnchecked as unchecked:
                absolute = PurePath(unchecked.workspace).is_absolute()
                if not absolute or not await trio.to_thread.run_sync(os.path.isdir, unchecked.workspace):
                    raise BadWorkspace(unchecked.workspace) from None
                command = attrs.evolve(command, existing_directory=unchecked.workspace)

    async def _interrupt(self, thread_id: str, turn_id: str, reason: str) -> None:
        thread = self._core.directory.get(thread_id)
        if thread is None:
            await trio.lowlevel.checkpoint()
            return
        job = thread.job
        if job is not None and job.is_turn and job.turn_id == turn_id:
            job.cancel(reason)
        await self._ask(thread_id, c.Interrupt(turn_id, reason))

    async def _abandon(self, thread_id: str, turn_id: str) -> TurnOutcome | None:
        """Interrupt a turn whose caller leaves, and wait for its end within `turn_exit_grace`."""
        with trio.move_on_after(self._core.services.config.deadlines.turn_exit_grace, shield=True):
            try:
                await self._interrupt(thread_id, turn_id, "caller_left")
                return await self.wait_turn(thread_id, turn_id)
            except RoderTrioError:
                return None
        return None


def _message(text: str, images: Images) -> UserMessage:
    if not isinstance(text, str):
        raise TypeError(f"a message must be text, not {type(text).__name__}")
    if isinstance(images, str):
        raise TypeError("images must be a list of images or their URLs, not str")
    return UserMessage(text, tuple(image if isinstance(image, Image) else Image(image) for image in images))


def _options(*, output: OutputOptions | None = None, **options: Unpack[_TextKeywords]) -> c.TurnOptions:
    if output is not None and not isinstance(output, OutputOptions):
        raise TypeError(f"output must be OutputOptions, not {type(output).__name__}")
    if output is not None:
        return c.TurnOptions(output=output, **options)
    return c.TurnOptions(**options) if options else _NO_OPTIONS
