"""What all groups of runtime methods stand on."""

from typing import Any

from roder_trio.errors import RuntimeClosed
from roder_trio.logic.thread.admission import ModelUnknown
from roder_trio.runtime.core import Core


class Base:
    """Holds the core; every public method checks that it is open before it asks anything of a thread or the store."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _check_open(self) -> None:
        if self._core.services.lifecycle.closed:
            raise RuntimeClosed

    async def _ask(self, thread_id: str, payload: Any) -> Any:
        self._check_open()
        return await self._core.directory.ask(thread_id, payload)

    async def _ask_for_job(self, thread_id: str, command: Any) -> Any:
        """Ask for a turn or a compaction; where nobody names a model, its engine is asked once what it has."""
        asked: set[str] = set()
        while True:
            try:
                return await self._ask(thread_id, command)
            except ModelUnknown as unknown:
                if unknown.provider in asked or not await self._core.registry.find_default_model(unknown.provider):
                    raise
                asked.add(unknown.provider)
