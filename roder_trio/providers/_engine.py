"""What the engines of all dialects share: keys, requests, repairs, the list of models.

It opens exchanges and wires encoder, decoder and transport together; it makes no back-off of its own. A dialect says
what to post, how to read the answer, and which refusals it can repair.
"""

import abc
import hashlib
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import attrs
import trio

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor, public_url, url_secrets
from roder_trio.ports import InferenceEngine
from roder_trio.providers._dialect import Decoder, HttpRequest, Timeouts, encode_json, header_value, join_url
from roder_trio.providers._facts import Facts
from roder_trio.providers._http import AsyncClient, Exchange, SharedClient, open_exchange
from roder_trio.providers._key import ApiKey, KeySource, is_local
from roder_trio.providers._models import ModelList
from roder_trio.providers._place import known_models, known_server
from roder_trio.providers._profile import WireProfile
from roder_trio.providers._stream import EventStream, repair_notice
from roder_trio.schema.inference import (
    EngineTarget,
    InferenceCapabilities,
    InferenceRequest,
    ModelDescriptor,
    ProviderMetadata,
    TurnContext,
)
from roder_trio.schema.transcript import ToolCall

P = TypeVar("P", bound=WireProfile)


@attrs.frozen(kw_only=True)
class Post:
    """What one call sends beside its key."""

    path: str
    body: dict[str, Any] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    timeouts: Timeouts | None = None
    """How long the parts of this call may take, if not as the profile says."""
    repairs: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """What was changed after a refusal, by the name of the repair, with what is told of it."""

    def repaired(self, name: str, body: dict[str, Any], **details: str) -> "Post":
        """Return the call with another body, which is told by an event."""
        return attrs.evolve(self, body=body, repairs={**self.repairs, name: details})


@attrs.frozen
class _Call:
    """What one call carries beside its body."""

    headers: dict[str, str] = attrs.field(repr=False)
    redactor: Redactor


class HttpEngine(InferenceEngine, Generic[P]):
    """Talks to a server over HTTP; how one is made its constructor says."""

    dialect: ClassVar[str]
    usual_id: ClassVar[str]
    usual_base_url: ClassVar[str]
    profile_type: type[P]
    model_paths: ClassVar[tuple[str, ...]] = ("models", "v1/models")
    """Where the list of models is, each tried if the one before is not found."""
    target: EngineTarget

    def __init__(
        self,
        id: str | None = None,
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        env_keys: Sequence[str] | None = None,
        requires_auth: bool | None = None,
        default_model: str | None = None,
        models: Sequence[ModelDescriptor] | None = None,
        http: AsyncClient | None = None,
        profile: P | None = None,
        **flags: Any,
    ) -> None:
        """Make an engine for the server at `base_url`, else for the provider's own.

        What isn't given comes from the row of the shipped catalog for this server: that of the same host as `base_url`,
        without one that of the name `id`. `api_key` is a string or a function that is called for each request; without
        it the variables `env_keys` are tried in order. A server that has no row needs a key unless it is on the own
        machine or network; `requires_auth` overrules that. `default_model` is asked where a turn names none; without it
        the first that is listed. `models` are rows known beforehand, `http` is a client of the host's own, else the
        runtime's is used. Further keyword arguments are fields of `profile`, the flags of a vendor (`profile_type`).
        """
        self.id = id or self.usual_id
        row = known_server(self.dialect, self.id, base_url, self.usual_base_url)
        base_url = base_url or (row.base_url if row else self.usual_base_url)
        self._own_models = models is not None
        if models is None:
            models = known_models(self.id, base_url)
        if requires_auth is None:
            requires_auth = row.requires_auth if row else not is_local(base_url)
        if env_keys is None:
            env_keys = row.env_keys if row else ()
        self.default_model = default_model or (row.default_model if row else None)
        self.profile: P = attrs.evolve(profile or self.profile_type(**(row.flags if row else {})), **flags)
        self.target = EngineTarget(self.dialect, self.id, public_url(base_url).rstrip("/"))
        self.capabilities = attrs.evolve(
            InferenceCapabilities.agent(),
            image_input=self.profile.vision,
            structured_output=self.profile.structured,
        )
        self._key = KeySource(self.id, api_key, tuple(env_keys), requires_auth)
        self._base_url = base_url
        self._own_client = http
        self._client = http
        self._know(models)

    # -- what a dialect says

    @abc.abstractmethod
    def _post(self, request: InferenceRequest, profile: P) -> Post:
        """Return what to send for a request. Raises ProviderFailure for what the dialect can't express."""

    @abc.abstractmethod
    def _decoder(self, facts: Facts[P], request: InferenceRequest) -> Decoder:
        """Return the reader of the answer."""

    def _repaired(self, failure: ProviderFailure, post: Post, request: InferenceRequest, profile: P) -> Post | None:
        """Return what to send instead, once, after a refusal that can be helped; None if it can't."""
        return None

    def _standing_headers(self) -> Mapping[str, str]:
        """Return the headers of every call, beside the key's; those of the profile win."""
        return {}

    # -- what the runtime asks

    def use_client(self, client: AsyncClient) -> None:
        """Take the runtime's client; one given as `http` is kept."""
        if self._own_client is None:
            self._client = client

    def use_models(self, rows: Sequence[ModelDescriptor]) -> None:
        """Take the runtime's rows, over those of the shipped catalog; rows given as `models` are kept."""
        if not self._own_models:
            self._know((*self.known_models, *rows))

    def _know(self, rows: Sequence[ModelDescriptor]) -> None:
        """Go by these rows, of two for one model by the later."""
        self._rows = {row.id: row for row in rows}
        self.known_models = tuple(self._rows.values())
        self._models = ModelList(self.id, self.known_models, self.model_paths)

    def stream_turn(self, context: TurnContext, request: InferenceRequest) -> AbstractAsyncContextManager[EventStream]:
        """Send `request` and yield the iterator of its events, which also has `settle`.

        Entering waits for the response's headers. Leaving closes the response, whatever the cause; a cancel hangs up.
        Raises ProviderFailure, on entering or from the iterator.
        """
        return self._streaming(context, request, self._post, self._decoder)

    @asynccontextmanager
    async def _streaming(
        self,
        context: TurnContext,
        request: InferenceRequest,
        post: Callable[[InferenceRequest, P], Post],
        decoder: Callable[[Facts[P], InferenceRequest], Decoder],
    ) -> AsyncIterator[EventStream]:
        """Send what `post` makes of a request and yield what `decoder` reads in the answer."""
        profile = self.profile.for_model(self._rows.get(request.model.model))
        call = self._call()
        reader = decoder(self._facts(context, request, profile, call.redactor), request)
        async with self._using() as client:
            exchange, notices = await self._open(client, call, post(request, profile), request, profile)
            stream = EventStream(
                exchange,
                reader,
                provider=self.id,
                redactor=call.redactor,
                retry_empty=request.runtime.reliability.retry_empty_provider_body,
                notices=notices,
            )
            try:
                yield stream
            finally:
                await stream.aclose()

    async def list_models(self) -> Sequence[ModelDescriptor]:
        """Return the server's models with what is known of them, kept for 6 hours.

        If the call fails, the former or the given rows; without a key the given ones. Raises ProviderFailure if the
        call fails and no rows are known. A cancel keeps the former list.
        """
        await trio.lowlevel.checkpoint()
        if self._models.is_fresh():
            return self._models.rows
        try:
            call = self._call()
        except ProviderFailure:
            return self._models.rows
        async with self._using() as client:
            return await self._models.refresh(lambda path: self._send(client, "GET", path, call))

    # -- requests

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[AsyncClient]:
        """Yield the client to use; an engine outside a runtime opens one for the call."""
        if self._client is not None:
            yield self._client
        else:
            async with SharedClient() as client:
                yield client

    def _call(self) -> _Call:
        """Look the key up and return the headers of a call, with what hides all that is secret in it."""
        key = self._key.find()
        headers = dict(self._standing_headers())
        userinfo = unquote(urlsplit(self._base_url).netloc.rpartition("@")[0])
        if userinfo:
            headers["Authorization"] = f"Basic {b64encode(userinfo.encode()).decode()}"
        if key is not None:
            bearer = self.profile.auth == "bearer"
            headers["Authorization" if bearer else self.profile.auth] = f"Bearer {key}" if bearer else key
        for name, value in self.profile.extra_headers.items():
            checked = header_value(value)
            if checked is None:
                message = f"The header {name!r} of {self.id} can't be sent."
                raise ProviderFailure(ProviderFailureKind.INVALID_REQUEST, message, cause="bad_request")
            headers[name] = checked
        known = (key, *self.profile.extra_headers.values(), *url_secrets(self._base_url), headers.get("Authorization"))
        return _Call(headers, Redactor.of(tuple(secret for secret in known if secret)))

    def _facts(self, context: TurnContext, request: InferenceRequest, profile: P, redactor: Redactor) -> Facts[P]:
        return Facts(
            target=self.target,
            model=request.model.model,
            profile=profile,
            names=ToolNames((tool.name for tool in request.tools), profile.tool_name_limit),
            redactor=redactor,
            fresh=_fresh_ids(context.attempt_id),
            taken={item.id for item in request.transcript if isinstance(item, ToolCall)},
            freeform=frozenset(tool.name for tool in request.tools if tool.freeform_field is not None),
        )

    async def _open(
        self, client: AsyncClient, call: _Call, post: Post, request: InferenceRequest, profile: P
    ) -> tuple[Exchange, list[ProviderMetadata]]:
        """Send a call; one that is refused for what can be left out is sent again, once for each such reason."""
        while True:  # noqa: ASYNC913 - each round sends a request
            try:
                exchange = await self._send(client, "POST", post.path, call, post)
            except ProviderFailure as failure:
                repaired = self._repaired(failure, post, request, profile)
                if repaired is None or repaired.repairs.keys() == post.repairs.keys():
                    raise
                post = repaired
            else:
                return exchange, [repair_notice(name, **details) for name, details in post.repairs.items()]

    async def _send(
        self, client: AsyncClient, method: str, path: str, call: _Call, post: Post | None = None
    ) -> Exchange:
        parts = urlsplit(self._base_url)
        base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        headers = {"Accept-Encoding": "identity"}
        if post is not None:
            headers |= {"Content-Type": "application/json", "Accept": "text/event-stream", **post.headers}
        return await open_exchange(
            client,
            HttpRequest(
                method=method,
                url=join_url(base, path),
                headers={**headers, **call.headers},
                body=b"" if post is None else encode_json(post.body),
                quiet=bool(parts.query),
                limit_headers=self.profile.limit_headers,
            ),
            provider=self.id,
            timeouts=(post.timeouts if post else None) or self.profile.timeouts,
            redactor=call.redactor,
        )


def _fresh_ids(attempt_id: str) -> Callable[[], str]:
    """Return a maker of ids that no other attempt makes; short, since some servers allow 40 characters."""
    attempt = hashlib.blake2s(attempt_id.encode(errors="replace"), digest_size=8).hexdigest()
    count = itertools.count(1)
    return lambda: f"call_{attempt}_{next(count)}"
