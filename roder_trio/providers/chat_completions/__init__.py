"""The Chat Completions dialect."""

from roder_trio.providers.chat_completions.engine import ChatCompletions
from roder_trio.providers.chat_completions.profile import Profile

__all__ = ["ChatCompletions", "Profile"]
