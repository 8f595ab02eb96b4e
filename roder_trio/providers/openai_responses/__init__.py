"""The OpenAI Responses dialect."""

from roder_trio.providers.openai_responses.engine import OpenAIResponses
from roder_trio.providers.openai_responses.profile import Profile

__all__ = ["OpenAIResponses", "Profile"]
