"""One HTTP exchange over httpx, as trio wants it. The only module that knows httpx.

No async generator: httpx's own ones are run to their end before a response is closed, or the collector would find them
half-run. Reads are never shielded, closing is, for at most `CLOSE_GRACE`. `Cancelled` is never converted. Exceptions
of the library are replaced, since their texts may hold the URL. Times are seconds on trio's clock.
"""

import functools
import math
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import httpx
import trio
from httpx import AsyncClient

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import failure
from roder_trio.logic.redaction import Redactor
from roder_trio.providers._dialect import HttpRequest, Timeouts, decode_json

__all__ = ["AsyncClient", "Broken", "Exchange", "SharedClient", "fetch_json", "open_exchange"]

KEEPALIVE = 30.0
"""Seconds that an idle connection is kept."""
CLOSE_GRACE = 2.0
"""Seconds that closing a connection, or a pool of them, may take under a shield."""
LINGER = 0.1
"""Seconds that the end of a body is waited for behind the end of its answer."""
ERROR_BODY = 64 * 2**10
"""Bytes after which no more is read of a failure's body."""
ERROR_BODY_WAIT = 5.0
"""Seconds after which no more is read of it."""
MAX_JSON = 16 * 2**20
"""Bytes that an answer which is no stream may have."""
_MAX_DRAINED = 4096
"""Pieces that may be left of a body for its connection to be used again."""

Kind = ProviderFailureKind

_READ_ERRORS = (httpx.HTTPError, httpx.StreamError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_STALE = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Broken(Exception):
    """The body broke off."""


@functools.cache
def _trust() -> ssl.SSLContext:
    """The authorities that servers are known by, read once: it takes longer than opening a runtime."""
    return httpx.create_ssl_context()


class SharedClient(AsyncClient):
    """The client that a runtime's engines share.

    A cancel during a connect may pin a slot of the pool for good. So after the first pool timeout new requests go to a
    fresh pool, once; the old one closes after its last stream.
    """

    def __init__(self, **options: Any) -> None:
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE)
        own: dict[str, Any] = {"verify": _trust(), "http2": False, "follow_redirects": False, "limits": limits}
        self._options = own | options
        super().__init__(**self._options)
        self._fresh: AsyncClient | None = None
        self._old_streams = 0

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send through the pool in use; see the class."""
        if self._fresh is not None:
            return await self._fresh.send(request, **options)
        try:
            response = await super().send(request, **options)
        except httpx.PoolTimeout:
            self._fresh = self._fresh or AsyncClient(**self._options)
            raise
        if options.get("stream"):
            self._old_streams += 1
            response.extensions["roder_trio_pool"] = self
        return response

    async def release(self, response: httpx.Response) -> None:  # noqa: ASYNC910 - closing was a checkpoint
        """Take note that a streamed response was closed."""
        if response.extensions.get("roder_trio_pool") is self:
            self._old_streams -= 1
            if self._fresh is not None and not self._old_streams:
                await self._transport.aclose()

    async def aclose(self) -> None:
        """Close both pools."""
        if self._fresh is not None:
            await self._fresh.aclose()
        await super().aclose()

    async def __aexit__(self, *args: object) -> None:
        """Close both pools; shielded, for at most `CLOSE_GRACE`."""
        with trio.move_on_after(CLOSE_GRACE, shield=True):
            if self._fresh is not None:
                await self._fresh.aclose()
            await super().__aexit__(*args)  # type: ignore[arg-type]


@attrs.define
class _Trace:
    """Follows httpcore through one send: whether a connection was made, and when the clock for headers starts."""

    scope: trio.CancelScope
    timeouts: Timeouts
    used_network: bool = False
    connected: bool = False

    async def __call__(self, name: str, info: Mapping[str, Any]) -> None:  # noqa: ASYNC910 - a note between awaits
        self.used_network = True
        self.connected = self.connected or name.startswith("connection.connect")
        if ".receive_response" not in name:
            writes = name.endswith(("send_request_headers.started", "send_request_body.started"))
            # while a request is being written the write timeout decides
            self.scope.deadline = trio.current_time() + self.timeouts.headers + (self.timeouts.write if writes else 0)

    @property
    def reused(self) -> bool:
        """Whether the request went over a connection that was there before."""
        return self.used_network and not self.connected


class Exchange:
    """A response whose headers have come, with status 2xx. `read` brings its body; `aclose` must be called."""

    def __init__(
        self,
        client: AsyncClient,
        response: httpx.Response,
        *,
        first_byte_within: float = math.inf,
        repeated: bool = False,
    ) -> None:
        self.headers = _headers(response)
        self.repeated = repeated
        """Whether a stale connection made it necessary to send the request twice."""
        self.first_byte_within = first_byte_within
        """How long the first byte of the body may take from here; infinite once it has come."""
        self._client = client
        self._response = response
        self._bytes: AsyncIterator[bytes] | None = None
        self._ended = False

    @property
    def request_id(self) -> str | None:
        """The provider's id of the request."""
        return failure.request_id(self.headers)

    def name_limits(self, names: Mapping[str, str]) -> None:
        """Read the server's own headers about its limits as the usual ones that they are named with."""
        own = {name.lower(): usual.lower() for name, usual in names.items()}
        self.headers |= {usual: self.headers[name] for name, usual in own.items() if name in self.headers}

    async def read(self) -> bytes | None:
        """Wait for more of the body; None at its end. A cancel loses nothing but the connection. Raises Broken."""
        try:
            data = await self._next()
        except StopAsyncIteration:
            self._ended = True
            return None  # noqa: ASYNC910 - the end of what had come already
        except _READ_ERRORS:
            self._ended = True
            raise Broken from None
        self.first_byte_within = math.inf
        return data

    async def aclose(self, *, linger: bool = False) -> list[bytes]:
        """Close the response; return what of its body had come already.

        With `linger` the body's end is waited for briefly, so that the connection can be used again. Takes at most
        `CLOSE_GRACE` otherwise, shielded.
        """
        left: list[bytes] = []
        try:
            if linger:
                with trio.move_on_after(LINGER):
                    await self._drain(left)
        finally:
            with trio.move_on_after(CLOSE_GRACE, shield=True):
                with trio.CancelScope() as gone:
                    gone.cancel()
                    await self._drain(left)
                await self._response.aclose()
                if isinstance(self._client, SharedClient):
                    await self._client.release(self._response)
        return left

    async def _drain(self, left: list[bytes]) -> None:  # noqa: ASYNC910 - it ends where a checkpoint would be
        # without a checkpoint in between: only what is buffered comes, then the generators meet the cancel and end
        for _ in range(_MAX_DRAINED):
            if self._ended or self._bytes is None:
                return  # noqa: ASYNC910 - as above
            try:
                left.append(await self._next())
            except (StopAsyncIteration, *_READ_ERRORS):
                self._ended = True

    async def _next(self) -> bytes:
        if self._bytes is None:
            self._bytes = self._response.aiter_bytes()
        return await anext(self._bytes)


async def open_exchange(
    client: AsyncClient, request: HttpRequest, *, provider: str, timeouts: Timeouts, redactor: Redactor
) -> Exchange:
    """Send `request` and wait for the headers of a 2xx answer.

    A cancel closes what was opened. A connection from the pool that dies before it answers is replaced, once.
    Raises ProviderFailure.
    """
    for repeated in (False, True):
        trace = _Trace(trio.CancelScope(deadline=trio.current_time() + timeouts.headers), timeouts)
        try:
            response = await _send(client, request, trace, timeouts)
        except _STALE as error:
            if repeated or not trace.reused:
                raise _of_exception(provider, error) from None
            continue
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, trio.BrokenResourceError) as error:
            raise _of_exception(provider, error) from None
        if response is None:
            message = f"{provider} sent no headers within {timeouts.headers:g} s."
            raise ProviderFailure(Kind.TIMEOUT, message, cause="headers")
        left = trace.scope.deadline - trio.current_time()
        exchange = Exchange(client, response, first_byte_within=left, repeated=repeated)
        exchange.name_limits(request.limit_headers)
        if response.is_success:
            return exchange  # noqa: ASYNC910 - sending was a checkpoint
        raise await _of_error_response(exchange, provider, response.status_code, redactor)
    raise AssertionError("the second send returns or raises")


async def fetch_json(exchange: Exchange, provider: str) -> Any:
    """Read the whole body as JSON and close. Raises ProviderFailure."""
    body = bytearray()
    try:
        with trio.move_on_after(exchange.first_byte_within) as scope:
            while (data := await exchange.read()) is not None:
                body += data
                if len(body) > MAX_JSON:
                    raise ProviderFailure(Kind.PROTOCOL, f"{provider} sent too long an answer.", cause="too_large")
        if scope.cancelled_caught:
            raise ProviderFailure(Kind.TIMEOUT, f"{provider} did not finish its answer.", cause="headers")
        return decode_json(bytes(body))
    except Broken:
        raise ProviderFailure(Kind.TRANSPORT, f"{provider} broke off its answer.", cause="io") from None
    except ValueError:
        raise ProviderFailure(Kind.PROTOCOL, f"{provider} sent no JSON.", cause="bad_json") from None
    finally:
        await exchange.aclose()


# -- sending -----------------------------------------------------------------------------------------------------------


class _QuietURL(httpx.URL):
    """A URL whose text may be logged."""

    def __str__(self) -> str:
        return str(self.copy_with(username=None, password=None, query=None, fragment=None))


async def _send(client: AsyncClient, request: HttpRequest, trace: _Trace, timeouts: Timeouts) -> httpx.Response | None:
    limits = httpx.Timeout(connect=timeouts.connect, write=timeouts.write, pool=timeouts.pool, read=None)
    prepared = client.build_request(
        request.method, request.url, headers=dict(request.headers), content=request.body or None, timeout=limits
    )
    if request.quiet:
        prepared.url = _QuietURL(prepared.url)
    prepared.extensions["trace"] = trace
    with trace.scope:
        return await client.send(prepared, stream=True, follow_redirects=False)
    return None


async def _of_error_response(exchange: Exchange, provider: str, status: int, redactor: Redactor) -> ProviderFailure:
    body = bytearray()
    try:
        with trio.move_on_after(ERROR_BODY_WAIT):  # noqa: ASYNC912 - reading waits unless it is done
            while len(body) < ERROR_BODY and (data := await exchange.read()) is not None:
                body += data
    except Broken:
        pass  # what came is what can be told
    finally:
        await exchange.aclose()
    if len(body) >= ERROR_BODY:
        # a secret may have been cut in half at the end
        body = body[: ERROR_BODY - redactor.longest]
    now = datetime.now(UTC)
    return failure.of_response(provider, status, exchange.headers, bytes(body), now=now, redactor=redactor)


def _of_exception(provider: str, error: Exception) -> ProviderFailure:
    kind, cause, detail, should_retry = _verdict(error)
    return ProviderFailure(kind, f"{provider} could not be reached: {detail}.", cause=cause, should_retry=should_retry)


def _verdict(error: Exception) -> tuple[Kind, str, str, bool | None]:
    match error:
        case httpx.ConnectTimeout():
            return Kind.TIMEOUT, "connect", "no connection in time", None
        case httpx.PoolTimeout():
            return Kind.TIMEOUT, "pool", "all connections are in use", None
        case httpx.WriteTimeout():
            return Kind.TIMEOUT, "write", "the request could not be written in time", None
        case httpx.TimeoutException():
            return Kind.TIMEOUT, "headers", "no answer in time", None
        case httpx.ProxyError():
            denied = "407" in str(error)
            return Kind.TRANSPORT, "proxy", "the proxy refused", False if denied else None
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return Kind.TRANSPORT, "url", "the base URL can't be used; give one such as http://localhost:8000/v1", False
        case httpx.LocalProtocolError():
            return Kind.INVALID_REQUEST, "bad_request", "the request can't be sent over HTTP", None
        case _ if any(isinstance(part, ssl.SSLCertVerificationError) for part in _chain(error)):
            return Kind.TRANSPORT, "tls", "its certificate is not trusted", False
        case httpx.ConnectError():
            return Kind.TRANSPORT, "connect", "the connection failed", None
        case _:
            return Kind.TRANSPORT, "io", "the connection broke before the answer", None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _headers(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
