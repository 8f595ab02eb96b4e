"""The engine for everything that speaks the Anthropic Messages API. It keeps nothing between calls."""

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit

from roder_trio.errors import ProviderFailure
from roder_trio.providers._dialect import Decoder
from roder_trio.providers._engine import HttpEngine, Post
from roder_trio.providers._facts import Facts
from roder_trio.providers.anthropic.decode import AnthropicDecoder
from roder_trio.providers.anthropic.encode import betas, encode
from roder_trio.providers.anthropic.messages import text_blocks
from roder_trio.providers.anthropic.profile import Profile
from roder_trio.schema.inference import InferenceRequest

_VERSION = "v1"
_WANTS_USER = "must end with a user message"
GO_ON = "[Go on from where the message above ends.]"
"""What a model that continues no message of its own is told."""


class Anthropic(HttpEngine[Profile]):
    """Talks to a server with the Messages API; further keyword arguments are fields of `Profile`."""

    dialect = "anthropic"
    usual_id = "anthropic"
    usual_base_url = "https://api.anthropic.com"
    profile_type = Profile
    model_paths = ("models?limit=1000", "v1/models?limit=1000")

    def _standing_headers(self) -> Mapping[str, str]:
        return {"anthropic-version": self.profile.version}

    def _post(self, request: InferenceRequest, profile: Profile) -> Post:
        body = encode(request, profile, target=self.target, now=datetime.now(UTC))
        used = betas(body, profile)
        ends_in_version = urlsplit(self.target.base_url).path.rpartition("/")[2] == _VERSION
        return Post(
            path="messages" if ends_in_version else f"{_VERSION}/messages",
            body=body,
            headers={"anthropic-beta": ",".join(used)} if used else {},
        )

    def _repaired(
        self, failure: ProviderFailure, post: Post, request: InferenceRequest, profile: Profile
    ) -> Post | None:
        """Ask in words to go on, where a model refuses a conversation that ends with its own message."""
        sent = post.body["messages"]
        if _WANTS_USER not in failure.message or not sent or sent[-1]["role"] != "assistant":
            return None
        asked = {"role": "user", "content": text_blocks(GO_ON)}
        return post.repaired("user_message_added", {**post.body, "messages": [*sent, asked]})

    def _decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return AnthropicDecoder(facts)
