"""Which engine answers: what the flags say, else the environment, else a local server that answers, else none.

Providers are those of the catalog. A key is only ever sent to the provider that it belongs to: a base URL of the user's
own gets the key that `--api-key-env` names, and no other.
"""

import functools
from collections.abc import Mapping
from urllib.parse import urlsplit

import attrs

import roder_trio as rt
from roder_trio import providers
from roder_trio.cli.discovery import FoundServer
from roder_trio.cli.failure import UsageError
from roder_trio.providers.catalog import Catalog, ProviderRow

PROVIDER_VARIABLE = "RODER_TRIO_PROVIDER"
OFFLINE = "offline"
CUSTOM = "custom"
CHAT = "chat_completions"
USUAL = "openai"
"""Who gets the key that `--api-key-env` names if nothing else says it."""


@functools.cache
def catalog() -> Catalog:
    """Return the shipped catalog, read once."""
    return Catalog.load()


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
    dialect: str = CHAT
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = attrs.field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown of this choice."""
        password = urlsplit(self.base_url or "").password
        return tuple(filter(None, (self.api_key, password)))


def configured(flags: Flags, environ: Mapping[str, str], *, needs_key: bool = True) -> Choice | None:
    """Return what the flags say, else the environment; None if neither names anyone.

    The first provider of the catalog whose key is set counts as named. Raises UsageError, also for a key that isn't
    set, unless none is needed.
    """
    if flags.provider or flags.base_url:
        return _named(flags.provider or CUSTOM, flags, environ, "named by the flags", needs_key=needs_key)
    if environ.get(PROVIDER_VARIABLE):
        because = f"named by {PROVIDER_VARIABLE}"
        return _named(environ[PROVIDER_VARIABLE], flags, environ, because, needs_key=needs_key)
    found = next(((row.id, name) for row in catalog().providers for name in row.env_keys if environ.get(name)), None)
    if flags.api_key_env:
        owner = next((row.id for row in catalog().providers if flags.api_key_env in row.env_keys), USUAL)
        found = (owner, flags.api_key_env)
    if found is None:
        return None
    provider, variable = found
    return _named(provider, flags, environ, f"the key in {variable} is used", needs_key=needs_key)


def fallback(flags: Flags, found: FoundServer | None) -> Choice:
    """Return the local server that was found, else the offline engine."""
    if found is None:
        because = "no provider is configured and no local server answers"
        return Choice(provider=OFFLINE, because=because, dialect=OFFLINE, model=flags.model)
    return Choice(
        provider=found.provider,
        because=f"found at {found.base_url}",
        model=flags.model or found.model,
        base_url=found.base_url,
    )


def _named(provider: str, flags: Flags, environ: Mapping[str, str], because: str, *, needs_key: bool) -> Choice:
    if provider == OFFLINE:
        if flags.base_url or flags.api_key_env:
            raise UsageError("--base-url and --api-key-env need another provider than 'offline'")
        return Choice(provider=OFFLINE, because=because, dialect=OFFLINE, model=flags.model)
    row = catalog().provider(provider)
    if row is None and not flags.base_url:
        names = ", ".join(known.id for known in catalog().providers)
        raise UsageError(f"there is no provider {provider!r}; name one of {names}, or give --base-url too")
    base_url = flags.base_url or (row.base_url if row else "")
    if not _is_web_address(base_url):
        raise UsageError("--base-url must be a URL such as http://localhost:8000/v1")
    return Choice(
        provider=row.id if row else provider,
        because=because,
        dialect=row.dialect if row else CHAT,
        model=flags.model or (row.default_model if row else None),
        base_url=base_url,
        api_key=_key(row, flags, environ, needs_key=needs_key),
    )


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _key(row: ProviderRow | None, flags: Flags, environ: Mapping[str, str], *, needs_key: bool) -> str | None:
    """Return the key to send. That of a provider goes to the provider's own address alone."""
    own = row.env_keys if row is not None and not flags.base_url else ()
    variables = (flags.api_key_env,) if flags.api_key_env else own
    found = next((environ[name] for name in variables if environ.get(name)), None)
    if found is None and variables and (needs_key or flags.api_key_env):
        is_not_set = " is not set" if len(variables) == 1 else ": none of these is set"
        names = ", ".join(variables)
        raise UsageError(f"the environment variable {names}{is_not_set}; put the provider's key into it")
    return found


def make_engine(choice: Choice) -> rt.InferenceEngine:
    """Make the engine of a choice."""
    match choice.dialect:
        case "openai_responses":
            return providers.OpenAIResponses(choice.provider, base_url=choice.base_url, api_key=choice.api_key)
        case "anthropic":
            return providers.Anthropic(choice.provider, base_url=choice.base_url, api_key=choice.api_key)
        case "gemini":
            return providers.Gemini(choice.provider, base_url=choice.base_url, api_key=choice.api_key)
        case "chat_completions":
            return providers.ChatCompletions(choice.provider, base_url=choice.base_url, api_key=choice.api_key)
    return providers.Offline()
