"""Where a database is, and how to speak of it without telling its password.

Rules of the room: pure; every text that leaves the store goes through `redacted`.
"""

from urllib.parse import quote

import attrs
from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

HIDDEN = "***"
DEFAULTS = {
    "application_name": "roder_trio",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""What a connection is asked for where the URL says nothing: a dead peer is noticed within half a minute."""


@attrs.frozen
class Address:
    """A database, with all that its URL says of the way there."""

    parameters: dict[str, str] = attrs.field(repr=False)
    shown: str
    """The URL without its password."""
    _secrets: tuple[str, ...] = attrs.field(repr=False)

    def redacted(self, text: object) -> str:
        """What `text` says, each password hidden, on one line."""
        said = " ".join(str(text).split())
        for secret in self._secrets:
            said = said.replace(secret, HIDDEN)
        return said


def read_address(url: str) -> Address:
    """Read a `postgresql://` URL, or a line of `key=value` pairs. Raises ValueError, which doesn't repeat it."""
    if not isinstance(url, str) or not url.strip():
        raise ValueError("url must be text such as postgresql://user:password@host/database")
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except (Error, ValueError):
        given = {}
    if not given:
        # the cause would repeat the password
        raise ValueError("url can't be read; give one such as postgresql://user:password@host/database")
    secrets = {given[key] for key in ("password", "sslpassword") if given.get(key)}
    forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), repr(secret)[1:-1])}
    return Address({**DEFAULTS, **given}, _shown(given), tuple(sorted(forms, key=len, reverse=True)))


def _shown(given: dict[str, str]) -> str:
    user = quote(given.get("user", ""), safe="")
    password = f":{HIDDEN}" if given.get("password") else ""
    at = "@" if user or password else ""
    host = quote(given.get("host", ""), safe=",:[]")
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{password}{at}{host}{port}/{quote(given.get('dbname', ''), safe='')}"
