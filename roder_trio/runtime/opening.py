"""Opening a runtime: what is opened first is closed last, and nothing runs before or after."""

import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from roder_trio import providers, stores
from roder_trio.actors._services import Lifecycle, PolicyModes, Services, Toolbox, envelope, utc_now
from roder_trio.actors._supervisor import RestartsExhausted, supervise
from roder_trio.actors.accounting import AccountingActor
from roder_trio.actors.broadcast import EventBroadcast
from roder_trio.actors.checkpoint import CheckpointTimer
from roder_trio.actors.direct import DirectCompactions
from roder_trio.actors.directory import Directory
from roder_trio.actors.goal import goal_tools
from roder_trio.actors.hook import Hooks, Policies
from roder_trio.actors.sink import Sinks
from roder_trio.logic.retry import MAX_JITTER
from roder_trio.ports import EventSink, Fallback, Hook, InferenceEngine, Policy, ThreadStore, Tool
from roder_trio.providers.catalog import Catalog
from roder_trio.runtime.core import Core
from roder_trio.runtime.cost import CostBook
from roder_trio.runtime.engines import EngineRegistry
from roder_trio.runtime.given import check_given
from roder_trio.runtime.runtime import Runtime
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import Lagged

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_runtime(
    *,
    engines: Sequence[InferenceEngine | Fallback] = (),
    store: ThreadStore | None = None,
    tools: Sequence[Tool] = (),
    policies: Sequence[Policy] = (),
    hooks: Sequence[Hook] = (),
    sinks: Sequence[EventSink] = (),
    http: Any = None,
    config: RuntimeConfig | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime for as long as the block runs.

    `engines` default to one `providers.Offline()`, `store` to a new memory store; policies and hooks are asked in the
    order given. `http` is an `httpx.AsyncClient` that is left open, else the runtime makes and closes one if an engine
    needs it. Leaving the block, also by an error or a cancel, interrupts what runs, settles usage, stores terminal
    events and closes everything, each stage within its grace; `runtime.shutdown_report` then says how that went.

    Raises TypeError for an argument of another kind, ValueError for two engines of one id or a catalog that can't be
    read, DuplicateTool, ToolDefinitionError for a schema that can't be compiled, StorageError if the store can't be
    opened.
    """
    check_given(engines=engines, store=store, tools=tools, policies=policies, hooks=hooks, sinks=sinks, config=config)
    config = config or RuntimeConfig()
    own_tools = goal_tools() if config.goals.model_tools else ()
    extensions = _Extensions(Toolbox([*tools, *own_tools]), policies, hooks, sinks)
    registry = EngineRegistry(engines or [providers.Offline()], Catalog.load(config.catalog))
    store = store or stores.MemoryThreadStore()
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(store.open())
        await _share_client(registry, http, opened)
        outcome = _Body()
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True):  # a cancel here would leave `_live`, shielded, in start's own nursery
                core: Core = await nursery.start(_live, registry, store, extensions, config, outcome)
            try:
                with outcome.scope:
                    yield Runtime(core)
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                outcome.error = outcome.error or error
            finally:
                with trio.CancelScope(shield=True):
                    await core.shut_down()
                outcome.left.set()
        if outcome.error is not None:
            raise outcome.error


@attrs.frozen
class _Extensions:
    """What the host gave to look on and to be called."""

    toolbox: Toolbox
    policies: Sequence[Policy]
    hooks: Sequence[Hook]
    sinks: Sequence[EventSink]


class _Body:
    """How the caller's block was left; its error passes outside of our nursery, so that nothing wraps it."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.left = trio.Event()
        self.error: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """End the block, with this error."""
        self.error = self.error or error
        self.scope.cancel()


async def _live(
    registry: EngineRegistry,
    store: ThreadStore,
    extensions: _Extensions,
    config: RuntimeConfig,
    body: _Body,
    task_status: trio.TaskStatus[Core] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run all actors under a shield, so that a cancel reaches the caller's block first and they end in order."""
    broadcast = EventBroadcast(lambda missed: envelope(Lagged(missed)))
    accounting = AccountingActor(store, config, broadcast.publish, utc_now)
    costs = CostBook(registry)
    services = Services(
        store=store,
        accounting=accounting,
        broadcast=broadcast,
        config=config,
        engines=registry.engines,
        engine_facts=registry.facts,
        substitutes=registry.substitutes,
        lifecycle=Lifecycle(),
        checkpoints=CheckpointTimer(config.delta_checkpoint_interval),
        toolbox=extensions.toolbox,
        hooks=Hooks(extensions.hooks, config.deadlines, costs.cost_of),
        policies=Policies(extensions.policies, config.deadlines),
        policy_modes=PolicyModes(config.policy_mode),
        cost_of=costs.cost_of,
        jitter=lambda: random.uniform(0, MAX_JITTER),  # noqa: S311 - spreads retries, keeps no secret
    )
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            directory = Directory(services, nursery)
            store.watch_ownership(directory.lose)
            all_sinks = Sinks(extensions.sinks, broadcast, config.deadlines.sink_timeout)
            nursery.start_soon(all_sinks.run)
            nursery.start_soon(services.hooks.run)
            nursery.start_soon(services.checkpoints.run)
            nursery.start_soon(_account, accounting, body)
            task_status.started(Core(services, directory, DirectCompactions(services, directory), registry, all_sinks))
            await body.left.wait()
            nursery.cancel_scope.cancel()


async def _account(accounting: AccountingActor, body: _Body) -> None:
    """Run accounting; a runtime that can't count must not run."""
    try:
        await supervise("accounting", accounting.run)
    except RestartsExhausted as exhausted:
        accounting.close()
        body.end(exhausted.__cause__ or exhausted)


async def _share_client(registry: EngineRegistry, http: Any, opened: AsyncExitStack) -> None:
    """Give the engines that speak HTTP one client."""
    users = [e for e in registry if type(e).use_client is not InferenceEngine.use_client]
    if not users:
        await trio.lowlevel.checkpoint()
        return
    client = http
    if client is None:
        client = await opened.enter_async_context(providers.SharedClient())
    for engine in users:
        engine.use_client(client)
