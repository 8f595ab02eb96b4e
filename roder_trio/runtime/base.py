"""What all groups of runtime methods stand on."""

from typing import Any

from roder_trio.errors import RuntimeClosed
from roder_trio.runtime.core import Core


class Base:
    """Holds the core; every public method checks that it is open before it looks at anything else."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _check_open(self) -> None:
        if self._core.services.lifecycle.closed:
            raise RuntimeClosed

    async def _ask(self, thread_id: str, payload: Any) -> Any:
        self._check_open()
        return await self._core.directory.ask(thread_id, payload)
