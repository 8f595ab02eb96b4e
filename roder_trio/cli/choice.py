"""Which engine answers: what the flags say, else the environment, else a local server that answers, else none.

A key is only ever sent to the provider that it belongs to: a base URL of the user's own gets the key that
`--api-key-env` names, and no other.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import attrs

import roder_trio as rt
from roder_trio import providers
from roder_trio.cli.discovery import LOCAL_SERVERS, FoundServer
from roder_trio.cli.failure import UsageError

PROVIDER_VARIABLE = "RODER_TRIO_PROVIDER"
KEY_VARIABLE = "OPENAI_API_KEY"
OFFLINE = "offline"
CUSTOM = "custom"


@attrs.frozen
class Known:
    """A provider that needs no base URL from the user."""

    base_url: str
    key_variable: str | None = None
    model: str | None = None
    """The model if none is named; None: the first that the provider lists."""


KNOWN = {
    "openai": Known("https://api.openai.com/v1", KEY_VARIABLE, "gpt-5-mini"),
    **{server.provider: Known(server.base_url) for server in LOCAL_SERVERS},
}


@attrs.frozen(kw_only=True)
class Flags:
    """What the command line says about the engine."""

    provider: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None


@attrs.frozen(kw_only=True)
class Choice:
    """The engine to use, and in `because` the words that tell the user why."""

    provider: str
    because: str
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = attrs.field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown of this choice."""
        password = urlsplit(self.base_url or "").password
        return tuple(filter(None, (self.api_key, password)))


def configured(flags: Flags, environ: Mapping[str, str]) -> Choice | None:
    """Return what the flags say, else the environment; None if neither names anyone. Raises UsageError."""
    if flags.provider or flags.base_url:
        return _named(flags.provider or CUSTOM, flags, environ, "named by the flags")
    if environ.get(PROVIDER_VARIABLE):
        return _named(environ[PROVIDER_VARIABLE], flags, environ, f"named by {PROVIDER_VARIABLE}")
    if flags.api_key_env or environ.get(KEY_VARIABLE):
        return _named("openai", flags, environ, f"the key in {flags.api_key_env or KEY_VARIABLE} is used")
    return None


def fallback(flags: Flags, found: FoundServer | None) -> Choice:
    """Return the local server that was found, else the offline engine."""
    if found is None:
        because = "no provider is configured and no local server answers"
        return Choice(provider=OFFLINE, because=because, model=flags.model)
    return Choice(
        provider=found.provider,
        because=f"found at {found.base_url}",
        model=flags.model or found.model,
        base_url=found.base_url,
    )


def _named(provider: str, flags: Flags, environ: Mapping[str, str], because: str) -> Choice:
    if provider == OFFLINE:
        if flags.base_url or flags.api_key_env:
            raise UsageError("--base-url and --api-key-env need another provider than 'offline'")
        return Choice(provider=OFFLINE, because=because, model=flags.model)
    known = KNOWN.get(provider)
    if known is None and not flags.base_url:
        names = ", ".join([OFFLINE, *KNOWN])
        raise UsageError(f"there is no provider {provider!r}; name one of {names}, or give --base-url too")
    base_url = flags.base_url or (known.base_url if known else "")
    if not _is_web_address(base_url):
        raise UsageError("--base-url must be a URL such as http://localhost:8000/v1")
    return Choice(
        provider=provider,
        because=because,
        model=flags.model or (known.model if known else None),
        base_url=base_url,
        api_key=_key(known, flags, environ),
    )


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _key(known: Known | None, flags: Flags, environ: Mapping[str, str]) -> str | None:
    variable = flags.api_key_env or (known.key_variable if known else None)
    if variable is None:
        return None
    if not environ.get(variable):
        raise UsageError(f"the environment variable {variable} is not set; put the provider's key into it")
    return environ[variable]


def make_engine(choice: Choice) -> rt.InferenceEngine:
    """Make the engine of a choice."""
    if choice.base_url is None:
        return providers.Offline()
    return providers.ChatCompletions(id=choice.provider, base_url=choice.base_url, api_key=choice.api_key)
