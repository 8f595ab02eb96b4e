"""What a decoder knows of its request, and the replay metadata that it leaves for the next one.

Pure; fresh ids come from outside.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import failure
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor
from roder_trio.providers._profile import WireProfile
from roder_trio.schema.inference import EngineTarget, ProviderMetadata

_SAID = ("text", "thinking", "refusal")
_DATA_URL = re.compile(r"data:\S*")

P_co = TypeVar("P_co", bound=WireProfile, covariant=True)


@attrs.frozen(kw_only=True)
class Facts(Generic[P_co]):
    """What a decoder knows of its request."""

    target: EngineTarget
    model: str
    profile: P_co
    names: ToolNames
    redactor: Redactor
    fresh: Callable[[], str]
    """Makes ids of calls that no other attempt makes."""
    taken: Collection[str] = ()
    """Ids of calls in the request's transcript."""
    freeform: Collection[str] = ()
    """Names of the tools that are offered as freeform ones."""

    def replay(
        self,
        *,
        response_id: str | None,
        output: Sequence[Any],
        usage: Any,
        service_tier: str | None,
        raw_stop_reason: str | None,
        **more: Any,
    ) -> ProviderMetadata:
        """Return the metadata that stands right before `Completed`; of `more` what is None, or empty, is left out."""
        payload: dict[str, Any] = {
            "dialect": self.target.dialect,
            "provider": self.target.provider,
            "base_url": self.target.base_url,
            "model": self.model,
            "response_id": response_id,
            "output": without_images(output),
            "usage": usage,
            "service_tier": service_tier,
            "raw_stop_reason": raw_stop_reason,
        }
        kept = {name: without_images(value) for name, value in more.items() if value is not None and value != []}
        return ProviderMetadata({**payload, **kept})

    def truncated(self, response_id: str | None = None) -> ProviderFailure:
        """Return the failure of a stream that ended before its answer did."""
        message = f"{self.target.provider} ended the stream before its answer was finished."
        return ProviderFailure(
            ProviderFailureKind.STREAM_INTERRUPTED, message, cause="truncated", response_id=response_id
        )

    def told(self, error: Any, response_id: str | None = None) -> ProviderFailure:
        """Return the failure that an error inside the stream tells of."""
        return failure.in_stream(self.target.provider, error, redactor=self.redactor, response_id=response_id)


def without_images(value: Any) -> Any:
    """Return JSON in which the bytes of data URLs are left out; what was said stays, however it begins."""
    if isinstance(value, Mapping):
        return {
            name: part if name in _SAID and isinstance(part, str) else without_images(part)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_images(part) for part in value]
    return "data:" if isinstance(value, str) and _DATA_URL.fullmatch(value) else value
