"""The engine for the Gemini API. It keeps nothing between calls."""

from urllib.parse import quote

from roder_trio.providers._dialect import Decoder
from roder_trio.providers._engine import HttpEngine, Post
from roder_trio.providers._facts import Facts
from roder_trio.providers.gemini.decode import GeminiDecoder
from roder_trio.providers.gemini.encode import encode
from roder_trio.providers.gemini.profile import Profile
from roder_trio.schema.inference import InferenceRequest


class Gemini(HttpEngine[Profile]):
    """Talks to a server with the Gemini API; arguments as of every engine here, flags as in `Profile`."""

    dialect = "gemini"
    usual_id = "gemini"
    usual_base_url = "https://generativelanguage.googleapis.com"
    profile_type = Profile
    model_paths = ("v1beta/models?pageSize=1000",)

    def _post(self, request: InferenceRequest, profile: Profile) -> Post:
        model = quote(request.model.model.removeprefix("models/"), safe="/")
        path = f"v1beta/models/{model}:streamGenerateContent?alt=sse"
        return Post(path=path, body=encode(request, profile, target=self.target))

    def _decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return GeminiDecoder(facts)
