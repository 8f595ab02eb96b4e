"""Texts without secrets: what may be shown, logged or stored of what a provider said.

Pure. Known secrets go first, then what looks like one. A text is redacted before it is cut, or half a key would stay.
"""

import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit, urlunsplit

import attrs

MARK = "[redacted]"
MIN_LENGTH = 4
"""Shorter strings are no secrets, and replacing them would garble every text."""

_SECRET_NAME = r"[\w.-]*(?:key|token|secret|password|passwd|signature|sig|credential|auth)[\w.-]*"  # noqa: S105
_SECRET_PARAMETER = re.compile(_SECRET_NAME, re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"\bsk-[\w*.-]{6,}"), MARK),
    (re.compile(r"(\bBearer\s+)[^\s\"',;]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"((?<![\w-])(?:[\w-]*(?:key|token|secret|password))=)[^&\s\"'<>]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"\bAIza[\w-]{16,}"), MARK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"), MARK),
    (re.compile(r"(\w://)[^/\s@:]+:[^/\s@]+@"), rf"\1{MARK}@"),
)


@attrs.frozen
class Redactor:
    """Takes secrets out of texts. Made of the secrets of one call."""

    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "Redactor":
        """Return a redactor that also knows how each secret looks in a URL and in JSON."""
        known = {form for secret in secrets if len(secret) >= MIN_LENGTH for form in _forms(secret)}
        return cls(tuple(sorted(known, key=lambda text: (-len(text), text))))

    @property
    def longest(self) -> int:
        """The length of the longest known secret."""
        return len(self.secrets[0]) if self.secrets else 0

    def redact(self, text: str) -> str:
        """Return `text` without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, MARK)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def excerpt(self, text: str, limit: int) -> str:
        """Return the beginning of `text`, redacted first, then cut to `limit` characters."""
        return self.redact(text)[:limit]


def url_secrets(url: str) -> tuple[str, ...]:
    """Return what of a URL is secret: its user information, and the values of parameters with a telling name."""
    parts = urlsplit(url)
    values = [value for name, value in parse_qsl(parts.query) if _SECRET_PARAMETER.fullmatch(name)]
    userinfo = [part for part in (parts.username, parts.password) if part]
    return (*userinfo, *values)


def public_url(url: str) -> str:
    """Return a URL that may be shown and stored: without user information, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _forms(secret: str) -> Iterable[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
