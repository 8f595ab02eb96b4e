"""The key of a provider, looked up anew for each call.

The only place that reads the environment for keys. No other provider's variable is ever tried.
"""

import ipaddress
import os
from collections.abc import Callable
from urllib.parse import urlsplit

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.providers._dialect import header_value

ApiKey = str | Callable[[], str | None] | None

_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".lan")


@attrs.frozen
class KeySource:
    """Where the key of `provider` comes from: `api_key`, else the variables `names` in order."""

    provider: str
    api_key: ApiKey = attrs.field(repr=False)
    names: tuple[str, ...]
    required: bool

    def find(self) -> str | None:
        """Return the key; None if there is none and none is needed. Raises ProviderFailure."""
        given = self.api_key() if callable(self.api_key) else self.api_key
        found = given or next(filter(None, (os.environ.get(name) for name in self.names)), None)
        key = header_value(found) if found else None
        if key is None and (found or self.required):
            tried = f" Tried: {', '.join(self.names)}." if self.names else ""
            problem = "a key that can't be sent in a header" if found else "no key"
            message = f"There is {problem} for {self.provider}; give api_key or set its variable.{tried}"
            raise ProviderFailure(ProviderFailureKind.AUTHENTICATION, message, cause="missing_credentials")
        return key


def is_local(base_url: str) -> bool:
    """Whether a URL names this machine or its own network, where servers need no key."""
    host = (urlsplit(base_url).hostname or "").rstrip(".")
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith(_LOCAL_ENDINGS)
