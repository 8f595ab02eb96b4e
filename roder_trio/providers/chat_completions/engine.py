"""The engine for everything that speaks Chat Completions.

What it keeps between calls are the parameters that a model refused.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.failure import parse_body
from roder_trio.providers._dialect import Decoder
from roder_trio.providers._engine import HttpEngine, Post
from roder_trio.providers._facts import Facts
from roder_trio.providers.chat_completions.decode import ChatDecoder
from roder_trio.providers.chat_completions.encode import encode, named_parameters
from roder_trio.providers.chat_completions.profile import LimitField, Profile
from roder_trio.schema.inference import InferenceRequest

_REPAIRABLE = (400, 422)
_OTHER_LIMIT: Mapping[str, LimitField] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


@attrs.frozen
class _Learned:
    """What a model's refusals taught."""

    without: frozenset[str] = frozenset()
    limit_field: LimitField | None = None


_NOTHING = _Learned()


class ChatCompletions(HttpEngine[Profile]):
    """Talks to a server with the Chat Completions API; further keyword arguments are fields of `Profile`."""

    dialect = "chat_completions"
    usual_id = "openai"
    usual_base_url = "https://api.openai.com/v1"
    profile_type = Profile

    @cached_property
    def _learned(self) -> dict[str, _Learned]:
        """What servers refused, by model."""
        return {}

    def _post(self, request: InferenceRequest, profile: Profile) -> Post:
        return Post(path="chat/completions", body=self._body(request, profile))

    def _decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return ChatDecoder(facts)

    def _repaired(
        self, failure: ProviderFailure, post: Post, request: InferenceRequest, profile: Profile
    ) -> Post | None:
        """Leave out an optional parameter that the server refuses, now and in later requests to the model."""
        names = self._learn(request.model.model, failure, post.body)
        if not names:
            return None
        return post.repaired("parameter_left_out", self._body(request, profile), parameter=", ".join(names))

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
