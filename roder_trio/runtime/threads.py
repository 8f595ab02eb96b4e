"""Threads: making, changing, reading, archiving them, and a host's own state beside them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from roder_trio.actors._services import new_id, utc_now
from roder_trio.codec import check_json
from roder_trio.errors import ThreadNotFound
from roder_trio.logic.item import merge
from roder_trio.runtime.base import Base
from roder_trio.schema import command as c
from roder_trio.schema.event import ThreadCreated, ThreadMetadataChanged, ThreadUnarchived
from roder_trio.schema.ids import UNSET, UnsetType
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.thread import ThreadMetadata, ThreadPage, ThreadSnapshot, frozen_labels


class ThreadMethods(Base):
    """What can be done with threads as a whole."""

    async def create_thread(
        self,
        title: str | None = None,
        *,
        workspace: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        reasoning: str | None = None,
        tool_allowlist: Sequence[str] = (),
        developer_instructions: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ThreadMetadata:
        """Create a thread; it is durable when this returns.

        What is None comes from the runtime's config at each turn. Cancelling leaves no thread, or a whole one nobody
        knows of. Raises UnknownProvider, ValueError for a relative workspace or bad labels, StorageError.
        """
        self._check_open()
        if provider is not None:
            self._core.registry[provider]
        now = utc_now()
        metadata = ThreadMetadata(
            thread_id=new_id(),
            title=title,
            workspace=workspace,
            provider=provider,
            model=model,
            reasoning=reasoning,
            tool_allowlist=tuple(tool_allowlist),
            developer_instructions=developer_instructions,
            labels=labels or {},
            created_at=now,
            updated_at=now,
        )
        stored = await self._core.services.store.create_thread(metadata)
        self._core.services.publish_live(ThreadCreated(stored), stored.thread_id, None, "runtime")
        return stored

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None | UnsetType = UNSET,
        provider: str | None | UnsetType = UNSET,
        model: str | None | UnsetType = UNSET,
        reasoning: str | None | UnsetType = UNSET,
        tool_allowlist: Sequence[str] | UnsetType = UNSET,
        developer_instructions: str | None | UnsetType = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
    ) -> ThreadMetadata:
        """Change what is given, in one event, and return the metadata. None clears a field; labels are replaced whole.

        A running turn keeps what it began with. Raises ThreadNotFound, UnknownProvider, ValueError, StorageError.
        """
        self._check_open()
        given = {
            "title": title,
            "provider": provider,
            "model": model,
            "reasoning": reasoning,
            "tool_allowlist": tool_allowlist if tool_allowlist is UNSET else tuple(tool_allowlist),
            "developer_instructions": developer_instructions,
            "labels": labels if labels is UNSET else frozen_labels(labels),
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not UNSET}
        now = utc_now()
        ThreadMetadata(thread_id=thread_id, created_at=now, updated_at=now, **changes)
        await self._ask(thread_id, c.UpdateThread(ThreadMetadataChanged(**changes)))
        metadata = await self._core.services.store.load_metadata(thread_id)
        if metadata is None:
            raise ThreadNotFound(thread_id)
        return metadata

    async def load_thread(self, thread_id: str) -> ThreadSnapshot | None:
        """Return all that is stored of a thread; None for an unknown or archived one. Raises StorageError."""
        if not await self._ask(thread_id, c.Touch()):
            return None
        snapshot = await self._core.services.store.load_thread(thread_id)
        if snapshot is None:
            return None
        return attrs.evolve(snapshot, item_events=merge(snapshot.item_events, snapshot.events))

    async def load_metadata(self, thread_id: str) -> ThreadMetadata | None:
        """Return a thread's metadata as last committed; None for an unknown or archived one. Raises StorageError."""
        self._check_open()
        return await self._core.services.store.load_metadata(thread_id)

    async def list_threads(
        self, limit: int = 50, cursor: str | None = None, label: tuple[str, str] | None = None
    ) -> ThreadPage:
        """Return a page of active threads, newest first. Raises ValueError, InvalidCursor, StorageError."""
        self._check_open()
        store = self._core.services.store
        if label is None:
            return await store.list_threads(limit=limit, cursor=cursor)
        return await store.list_threads(limit=limit, cursor=cursor, label=label)

    async def archive_thread(self, thread_id: str) -> bool:
        """Archive a thread, its running turn interrupted first; False if there is none.

        Cancelling a call that was taken abandons the answer only. Raises StorageError.
        """
        answer: bool = await self._ask(thread_id, c.Archive())
        return answer

    async def delete_thread(self, thread_id: str) -> bool:
        """Remove a thread, active or archived, with every byte that the store keeps; False if there is none.

        A running turn is interrupted first. Cancelling a call that was taken abandons the answer only. Raises
        StorageError, StoreUnsupported.
        """
        answer: bool = await self._ask(thread_id, c.Archive(delete=True))
        return answer

    async def unarchive_thread(self, thread_id: str) -> bool:
        """Bring an archived thread back as it was; False if it isn't archived.

        Cancelled, either all of that has happened or nothing. Raises StorageError.
        """
        self._check_open()
        done = await self._core.services.store.unarchive_thread(thread_id)
        if done:
            self._core.services.publish_live(ThreadUnarchived(), thread_id, None, "runtime")
        return done

    async def get_state(self, thread_id: str, extension_id: str, key: str) -> Any:
        """Return a host's own value beside the thread, or None. Raises ThreadNotFound, StorageError."""
        return copy.deepcopy(await self._ask(thread_id, c.GetState(extension_id, key)))

    async def set_state(self, thread_id: str, extension_id: str, key: str, value: Any, schema_version: int = 1) -> None:
        """Store a host's own JSON value beside the thread; durable when this returns.

        Raises InvalidRecord for what isn't JSON, ThreadNotFound, StorageError.
        """
        self._check_open()
        check_json(value)
        command = c.SetState(new_id(), extension_id, key, copy.deepcopy(value), schema_version)
        await self._ask(thread_id, command)

    async def list_models(self, provider: str | None = None) -> Sequence[ModelDescriptor]:
        """Return the models of one engine, or of all in engine order. Raises UnknownProvider, ProviderFailure."""
        self._check_open()
        return await self._core.registry.list_models(provider)
