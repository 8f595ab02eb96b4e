"""The engine for the Gemini API. It keeps nothing between calls."""

from urllib.parse import quote, urlsplit

from roder_trio.providers._dialect import Decoder
from roder_trio.providers._engine import HttpEngine, Post
from roder_trio.providers._facts import Facts
from roder_trio.providers.gemini.decode import GeminiDecoder
from roder_trio.providers.gemini.encode import encode
from roder_trio.providers.gemini.profile import Profile
from roder_trio.schema.inference import InferenceRequest

_VERSIONS = ("v1beta", "v1", "v1alpha")
"""Of the interface; the first is asked for where the base URL names none."""


class Gemini(HttpEngine[Profile]):
    """Talks to a server with the Gemini API; further keyword arguments are fields of `Profile`."""

    dialect = "gemini"
    usual_id = "gemini"
    usual_base_url = "https://generativelanguage.googleapis.com"
    profile_type = Profile
    model_paths = ("v1beta/models?pageSize=1000", "models?pageSize=1000")

    def _post(self, request: InferenceRequest, profile: Profile) -> Post:
        model = quote(request.model.model.removeprefix("models/"), safe="/")
        path = f"models/{model}:streamGenerateContent?alt=sse"
        ends_in_version = urlsplit(self.target.base_url).path.rpartition("/")[2] in _VERSIONS
        body = encode(request, profile, target=self.target)
        return Post(path=path if ends_in_version else f"{_VERSIONS[0]}/{path}", body=body)

    def _decoder(self, facts: Facts[Profile], request: InferenceRequest) -> Decoder:
        return GeminiDecoder(facts)
