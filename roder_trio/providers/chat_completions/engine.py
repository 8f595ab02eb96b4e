"""The engine for everything that speaks Chat Completions.

It opens exchanges and wires encoder, decoder and transport together; it makes no back-off of its own. What it keeps
between calls are the parameters that a model refused, and the list of models.
"""

import functools
import hashlib
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import attrs
import trio

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.failure import parse_body
from roder_trio.logic.redaction import Redactor, public_url, url_secrets
from roder_trio.ports import InferenceEngine
from roder_trio.providers._dialect import HttpRequest, encode_json, header_value, join_url
from roder_trio.providers._http import AsyncClient, Exchange, SharedClient, open_exchange
from roder_trio.providers._key import ApiKey, KeySource, is_local
from roder_trio.providers._models import ModelList
from roder_trio.providers._stream import EventStream, repair_notice
from roder_trio.providers.catalog import Catalog, ProviderRow
from roder_trio.providers.chat_completions.decode import ChatDecoder, Facts
from roder_trio.providers.chat_completions.encode import encode, named_parameters, tool_names
from roder_trio.providers.chat_completions.profile import LimitField, Profile
from roder_trio.schema.inference import (
    EngineTarget,
    InferenceCapabilities,
    InferenceRequest,
    ModelDescriptor,
    ProviderMetadata,
    TurnContext,
)
from roder_trio.schema.transcript import ToolCall

DIALECT = "chat_completions"
OPENAI = "https://api.openai.com/v1"
_REPAIRABLE = (400, 422)
_OTHER_LIMIT: Mapping[str, LimitField] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


@attrs.frozen
class _Call:
    """What one call carries beside its body."""

    headers: dict[str, str] = attrs.field(repr=False)
    secrets: tuple[str, ...] = attrs.field(repr=False)
    redactor: Redactor


@attrs.frozen
class _Learned:
    """What a model's refusals taught."""

    without: frozenset[str] = frozenset()
    limit_field: LimitField | None = None


_NOTHING = _Learned()


@functools.cache
def _catalog() -> Catalog:
    return Catalog.load()


def _row(id: str, base_url: str | None) -> ProviderRow | None:
    """Return the catalog's row for a server; a key of one host never goes to another."""
    catalog = _catalog()
    rows = [row for row in catalog.providers if row.dialect == DIALECT]
    if base_url is None:
        return next((row for row in rows if row is catalog.provider(id)), None)
    place = _place(base_url)
    here = [row for row in rows if _place(row.base_url) == place]
    return next((row for row in here if row.id == id or id in row.aliases), here[0] if here else None)


def _place(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


class ChatCompletions(InferenceEngine):
    """Talks to a server with the Chat Completions API.

    What isn't given comes from the row of the shipped catalog for this server: that of the same host as `base_url`,
    without one that of the name `id`. `api_key` is a string or a function that is called for each request; without it
    the variables `env_keys` are tried in order. A server that has no row needs a key unless it is on the own machine or
    network; `requires_auth` overrules that. `models` are rows known beforehand, `http` is a client of the host's own,
    else the runtime's is used. Further keyword arguments are fields of `Profile`.
    """

    target: EngineTarget

    def __init__(
        self,
        id: str = "openai",
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        env_keys: Sequence[str] | None = None,
        requires_auth: bool | None = None,
        default_model: str | None = None,
        models: Sequence[ModelDescriptor] | None = None,
        http: AsyncClient | None = None,
        profile: Profile | None = None,
        **flags: Any,
    ) -> None:
        row = _row(id, base_url)
        base_url = base_url or (row.base_url if row else OPENAI)
        if models is None:
            models = [attrs.evolve(known, provider=id) for known in _catalog().models_of(row.id)] if row else ()
        if requires_auth is None:
            requires_auth = row.requires_auth if row else not is_local(base_url)
        if env_keys is None:
            env_keys = row.env_keys if row else ()
        self.id = id
        self.default_model = default_model or (row.default_model if row else None)
        self.profile = attrs.evolve(profile or Profile(**(row.flags if row else {})), **flags)
        self.target = EngineTarget(DIALECT, id, public_url(base_url).rstrip("/"))
        self.capabilities = attrs.evolve(
            InferenceCapabilities.agent(),
            image_input=self.profile.vision,
            structured_output=self.profile.structured_output == "json_schema",
        )
        self._key = KeySource(id, api_key, tuple(env_keys), requires_auth)
        self._base_url = base_url
        self._rows = {known.id: known for known in models}
        self._own_client = http
        self._client = http
        self._learned: dict[str, _Learned] = {}
        self._models = ModelList(id, tuple(models))

    def use_client(self, client: AsyncClient) -> None:
        """Take the runtime's client; one given as `http` is kept."""
        if self._own_client is None:
            self._client = client

    @asynccontextmanager
    async def stream_turn(self, context: TurnContext, request: InferenceRequest) -> AsyncIterator[EventStream]:
        """Send `request` and yield the iterator of its events, which also has `settle`.

        Entering waits for the response's headers. Leaving closes the response, whatever the cause; a cancel hangs up.
        Raises ProviderFailure, on entering or from the iterator.
        """
        profile = self.profile.for_model(self._rows.get(request.model.model))
        call = self._call()
        decoder = ChatDecoder(self._facts(context, request, profile, call.redactor))
        async with self._using() as client:
            exchange, notices = await self._open(client, call, request, profile)
            stream = EventStream(
                exchange,
                decoder,
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

        async def get(path: str) -> Exchange:
            return await self._send(client, "GET", path, call, b"")

        async with self._using() as client:
            return await self._models.refresh(get)

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
        """Look the key up and return the headers of a call, with all that is secret in it."""
        key = self._key.find()
        headers: dict[str, str] = {}
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
        secrets = tuple(secret for secret in known if secret)
        return _Call(headers, secrets, Redactor.of(secrets))

    def _facts(self, context: TurnContext, request: InferenceRequest, profile: Profile, redactor: Redactor) -> Facts:
        return Facts(
            target=self.target,
            model=request.model.model,
            profile=profile,
            names=tool_names(request, profile),
            redactor=redactor,
            fresh=_fresh_ids(context.attempt_id),
            taken={item.id for item in request.transcript if isinstance(item, ToolCall)},
        )

    async def _open(
        self, client: AsyncClient, call: _Call, request: InferenceRequest, profile: Profile
    ) -> tuple[Exchange, list[ProviderMetadata]]:
        """Send a request; one that fails for an optional parameter is sent once more without it."""
        body = self._body(request, profile)
        try:
            return await self._send(client, "POST", "chat/completions", call, encode_json(body)), []
        except ProviderFailure as failure:
            names = self._learn(request.model.model, failure, body)
            if not names:
                raise
        notice = repair_notice("parameter_left_out", parameter=", ".join(names))
        body = self._body(request, profile)
        return await self._send(client, "POST", "chat/completions", call, encode_json(body)), [notice]

    def _body(self, request: InferenceRequest, profile: Profile) -> dict[str, Any]:
        learned = self._learned.get(request.model.model, _NOTHING)
        if learned.limit_field is not None:
            profile = attrs.evolve(profile, max_tokens_field=learned.limit_field)
        return encode(request, profile, target=self.target, without=learned.without)

    def _learn(self, model: str, failure: ProviderFailure, body: Mapping[str, Any]) -> list[str]:
        """Remember which optional parameters the server refuses for a model, and return those."""
        if failure.status not in _REPAIRABLE or failure.kind is not ProviderFailureKind.INVALID_REQUEST:
            return []
        parameter = parse_body((failure.body_excerpt or "").encode()).parameter
        names = named_parameters(failure.message, parameter, tuple(body))
        learned = self._learned.get(model, _NOTHING)
        for name in names:
            other = _OTHER_LIMIT.get(name)
            if other is not None and other in failure.message and learned.limit_field is None:
                learned = attrs.evolve(learned, limit_field=other)
            else:
                learned = attrs.evolve(learned, without=learned.without | {name})
        if names:
            self._learned[model] = learned
        return names

    async def _send(self, client: AsyncClient, method: str, path: str, call: _Call, body: bytes) -> Exchange:
        parts = urlsplit(self._base_url)
        base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        content = {"Content-Type": "application/json", "Accept": "text/event-stream"} if body else {}
        return await open_exchange(
            client,
            HttpRequest(
                method=method,
                url=join_url(base, path),
                headers={**content, "Accept-Encoding": "identity", **call.headers},
                body=body,
            ),
            provider=self.id,
            timeouts=self.profile.timeouts,
            redactor=call.redactor,
        )


def _fresh_ids(attempt_id: str) -> Callable[[], str]:
    """Return a maker of ids that no other attempt makes; short, since some servers allow 40 characters."""
    attempt = hashlib.blake2s(attempt_id.encode(errors="replace"), digest_size=8).hexdigest()
    count = itertools.count(1)
    return lambda: f"call_{attempt}_{next(count)}"
