"""Engines: the shipped providers, the embedded default and the test engine.

Each is imported when it is first named, so that `import roder_trio` loads no provider.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roder_trio.providers._fallback import fallback
    from roder_trio.providers._http import SharedClient as SharedClient
    from roder_trio.providers.anthropic import Anthropic
    from roder_trio.providers.chat_completions import ChatCompletions
    from roder_trio.providers.gemini import Gemini
    from roder_trio.providers.offline import Offline
    from roder_trio.providers.openai_responses import OpenAIResponses
    from roder_trio.providers.scripted import ScriptedEngine

_HOMES = {
    "Anthropic": "anthropic",
    "ChatCompletions": "chat_completions",
    "Gemini": "gemini",
    "Offline": "offline",
    "OpenAIResponses": "openai_responses",
    "ScriptedEngine": "scripted",
    "SharedClient": "_http",
    "fallback": "_fallback",
}

__all__ = ["Anthropic", "ChatCompletions", "Gemini", "Offline", "OpenAIResponses", "ScriptedEngine", "fallback"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
