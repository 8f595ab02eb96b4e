"""The list of models that a server offers, with what is known of them beforehand.

Kept for `KEEP` seconds of trio's clock. A call that fails leaves what was known. What the server says of a model's
context wins; everything else is taken from the given row.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import attrs
import trio

from roder_trio.errors import ProviderFailure
from roder_trio.providers._dialect import text_of
from roder_trio.providers._http import Exchange, fetch_json
from roder_trio.schema.inference import ModelDescriptor

KEEP = 6 * 3600.0
_NOT_FOUND = 404
_WINDOWS = ("context_length", "context_window", "max_context_length", "max_model_len", "inputTokenLimit")
_RESOURCE = "models/"
"""What stands before an id in a list of resources."""
_METHODS, _GENERATES = "supportedGenerationMethods", "generateContent"
"""What a list says of a model that is for other work than answering."""

Get = Callable[[str], Awaitable[Exchange]]


class ModelList:
    """The rows of one provider; `rows` are the newest known. `paths` are tried in order while one is not found."""

    def __init__(self, provider: str, given: tuple[ModelDescriptor, ...], paths: tuple[str, ...]) -> None:
        self._paths = paths
        self.rows = given
        self._provider = provider
        self._given = {row.id: row for row in given}
        self._fetched_at: float | None = None

    def is_fresh(self) -> bool:
        """Whether the rows were fetched lately."""
        return self._fetched_at is not None and trio.current_time() < self._fetched_at + KEEP

    async def refresh(self, get: Get) -> tuple[ModelDescriptor, ...]:
        """Fetch and return the rows; the former ones if that fails. Raises ProviderFailure if there are none."""
        try:
            value = await self._fetch(get)
        except ProviderFailure:
            if not self.rows:
                raise
            return self.rows  # noqa: ASYNC910 - the call that failed was a checkpoint
        self.rows = tuple(self._read(value))
        self._fetched_at = trio.current_time()
        return self.rows

    async def _fetch(self, get: Get) -> Any:
        *tried, last = self._paths
        for path in tried:
            try:
                return await fetch_json(await get(path), self._provider)
            except ProviderFailure as failure:
                if failure.status != _NOT_FOUND:
                    raise
        return await fetch_json(await get(last), self._provider)

    def _read(self, value: Any) -> Iterator[ModelDescriptor]:
        listed = value.get("data", value.get("models")) if isinstance(value, Mapping) else value
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, Mapping) and _answers(entry):
                id = text_of(entry.get("id")) or text_of(entry.get("name")).removeprefix(_RESOURCE)
                if id:
                    yield self._row(id, entry)

    def _row(self, id: str, entry: Mapping[str, Any]) -> ModelDescriptor:
        row = self._given.get(id) or ModelDescriptor(provider=self._provider, id=id)
        window = next((entry[name] for name in _WINDOWS if type(entry.get(name)) is int and entry[name] > 0), None)
        name = text_of(entry.get("displayName")) or text_of(entry.get("display_name")) or text_of(entry.get("name"))
        return attrs.evolve(
            row,
            display_name=row.display_name or name.removeprefix(_RESOURCE) or None,
            context_window=window or row.context_window,
        )


def _answers(entry: Mapping[str, Any]) -> bool:
    methods = entry.get(_METHODS)
    return not isinstance(methods, list) or _GENERATES in methods
