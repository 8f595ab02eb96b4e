"""The Anthropic Messages dialect."""

from roder_trio.providers.anthropic.engine import Anthropic
from roder_trio.providers.anthropic.profile import Profile

__all__ = ["Anthropic", "Profile"]
