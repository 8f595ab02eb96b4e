"""The iterator of an engine's stream: pulls bytes, decodes them, hands out events one by one.

One task, no channel. An event that is decoded already is handed out without a checkpoint, and all bytes are decoded as
soon as they are read, so that `settle` finds the newest usage. Either `Completed` ends it or a failure is raised.
"""

from collections import deque
from collections.abc import Iterable
from typing import Self

import trio

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.redaction import Redactor
from roder_trio.providers._body import Body, Part, Whole
from roder_trio.providers._dialect import Decoder, Output
from roder_trio.providers._http import Broken, Exchange
from roder_trio.schema import inference
from roder_trio.schema.inference import InferenceEvent, ProviderMetadata
from roder_trio.schema.usage import TokenUsage

Kind = ProviderFailureKind

_INVISIBLE = (inference.Usage, inference.ProviderMetadata, inference.Completed)


def repair_notice(repair: str, **details: str) -> ProviderMetadata:
    """Return the event that tells of a request which was sent again in another form."""
    return ProviderMetadata({"kind": "request_repair", "repair": repair, **details})


class EventStream:
    """The events of one answer. `aclose` must be called, by the task that iterates."""

    def __init__(
        self,
        exchange: Exchange,
        decoder: Decoder,
        *,
        provider: str,
        redactor: Redactor,
        retry_empty: bool = True,
        notices: Iterable[ProviderMetadata] = (),
    ) -> None:
        self._exchange = exchange
        self._decoder = decoder
        self._provider = provider
        self._redactor = redactor
        self._retry_empty = retry_empty
        self._body = Body(exchange.headers.get("content-type"), redactor)
        self._queue: deque[Output] = deque(notices)
        if exchange.repeated:
            self._queue.append(repair_notice("stale_connection"))
        self._waiting_since: float | None = None
        self._visible = False
        self._over = False
        self._completed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferenceEvent:
        """Return the next event, waiting only if none is decoded. A cancel loses no event. Raises ProviderFailure."""
        while not self._over:
            if self._queue:
                return self._hand_out(self._queue.popleft())  # noqa: ASYNC910 - a decoded event may not be lost
            await self._pull()
        raise StopAsyncIteration

    def settle(self) -> TokenUsage | None:
        """Return the running total that the bytes read so far hold; None if they hold none."""
        return self._decoder.settle()

    async def aclose(self) -> None:
        """Close the connection, or give it back if the answer was read to its end; shielded and bounded."""
        left = await self._exchange.aclose(linger=self._completed)
        if not self._over:
            self._over = True
            for data in left:
                self._decode(data)

    def _hand_out(self, output: Output) -> InferenceEvent:
        if isinstance(output, ProviderFailure):
            self._over = True
            output.visible = self._visible
            output.request_id = self._shown(output.request_id or self._exchange.request_id)
            output.response_id = self._shown(output.response_id)
            output.provider_code = self._shown(output.provider_code)
            raise output from None
        if isinstance(output, inference.Completed):
            self._over = self._completed = True
        self._visible = self._visible or not isinstance(output, _INVISIBLE)
        return output

    def _shown(self, text: str | None) -> str | None:
        return None if text is None else self._redactor.redact(text)

    async def _pull(self) -> None:  # noqa: ASYNC910 - bytes that had come are decoded at once
        patience = self._decoder.patience
        data: bytes | None = None
        broken = False
        try:
            with trio.CancelScope(deadline=self._due(patience)) as scope:
                data = await self._exchange.read()
        except Broken:
            broken = True
        if data is not None:
            self._decode(data)
        elif scope.cancelled_caught and patience is None:
            message = f"{self._provider} sent no body in time."
            self._queue.append(ProviderFailure(Kind.TIMEOUT, message, cause="headers"))
        else:
            self._end(broken=broken)

    def _due(self, patience: float | None) -> float:
        """Return when to stop waiting; time that the reader of the events took is not counted."""
        now = trio.current_time()
        if patience is None:
            return now + self._exchange.first_byte_within
        if self._waiting_since is None:
            self._waiting_since = now
        return self._waiting_since + patience

    def _decode(self, data: bytes) -> None:
        self._take(self._body.feed(data))

    def _end(self, *, broken: bool) -> None:
        self._take(self._body.eof(broken=broken))
        if self._body.frames:
            self._queue.extend(self._decoder.eof())
        elif not self._queue:
            self._queue.append(self._nothing(broken=broken))

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            self._waiting_since = None
            match part:
                case ProviderFailure():
                    self._queue.append(part)
                case Whole():
                    self._queue.extend(self._decoder.whole(part.value))
                case _:
                    self._queue.extend(self._decoder.feed(part))

    def _nothing(self, *, broken: bool) -> ProviderFailure:
        if broken:
            message = f"The connection to {self._provider} broke before the answer."
            return ProviderFailure(Kind.TRANSPORT, message, cause="io")
        return ProviderFailure(
            Kind.STREAM_INTERRUPTED,
            f"{self._provider} answered with an empty body.",
            cause="empty_body",
            should_retry=None if self._retry_empty else False,
        )
