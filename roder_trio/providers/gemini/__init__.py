"""The Gemini dialect."""

from roder_trio.providers.gemini.engine import Gemini
from roder_trio.providers.gemini.profile import Profile

__all__ = ["Gemini", "Profile"]
