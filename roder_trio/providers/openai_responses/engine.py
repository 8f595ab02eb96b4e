"""The engine for servers with the Responses API.

Nothing is kept between calls, here or on the server: each request holds all that the model is to know.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.compaction import UNSUPPORTED
from roder_trio.providers._dialect import Decoder
from roder_trio.providers._engine import HttpEngine, Post
from roder_trio.providers._facts import Facts
from roder_trio.providers._stream import EventStream
from roder_trio.providers.openai_responses.decode import CompactionDecoder, ResponsesDecoder
from roder_trio.providers.openai_responses.encode import encode, encode_compaction
from roder_trio.providers.openai_responses.profile import Profile
from roder_trio.providers.openai_responses.repair import repaired
from roder_trio.schema.inference import InferenceRequest, TurnContext

_NO_SUCH_ENDPOINT = (404, 405, 501)


class OpenAIResponses(HttpEngine[Profile]):
    """Talks to a server with the Responses API; further keyword arguments are fields of `Profile`."""

    dialect = "openai_responses"
    usual_id = "openai"
    usual_base_url = "https://api.openai.com/v1"
    profile_type = Profile

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[EventStream] | None:
        """Ask the server for a boundary that stands for the transcript; None if it has no endpoint for that.

        Entering waits for the response's headers. Leaving closes the response, whatever the cause; a cancel hangs up.
        Raises ProviderFailure, on entering or from the iterator.
        """
        return self._compacting(context, request) if self.profile.native_compaction else None

    @asynccontextmanager
    async def _compacting(self, context: TurnContext, request: InferenceRequest) -> AsyncIterator[EventStream]:
        async with AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(
                    self._streaming(context, request, self._compaction_post, self._compaction_decoder)
                )
            except ProviderFailure as failure:
                if failure.status not in _NO_SUCH_ENDPOINT:
                    raise
                raise _unsupported(failure) from None
            yield stream

    def _post(self, request: InferenceRequest, profile: Profile) -> Post:
        return Post(path="responses", body=encode(request, profile, target=self.target))

    def _decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return ResponsesDecoder(facts)

    def _compaction_post(self, request: InferenceRequest, profile: Profile) -> Post:
        body = encode_compaction(request, profile, target=self.target)
        return Post(
            path="responses/compact",
            body=body,
            headers={"Accept": "application/json"},
            timeouts=profile.compaction_timeouts,
        )

    def _compaction_decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return CompactionDecoder(facts)

    def _repaired(
        self, failure: ProviderFailure, post: Post, request: InferenceRequest, profile: Profile
    ) -> Post | None:
        """Leave out, once each, an output whose call the server misses, and reasoning that it can't read."""
        return repaired(failure, post)


def _unsupported(failure: ProviderFailure) -> ProviderFailure:
    return ProviderFailure(
        ProviderFailureKind.INVALID_REQUEST,
        failure.message,
        cause=UNSUPPORTED,
        status=failure.status,
        provider_code=failure.provider_code,
        request_id=failure.request_id,
        body_excerpt=failure.body_excerpt,
    )
