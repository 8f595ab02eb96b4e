"""Who answers: flags, environment, a local server, nobody."""

import pytest

from roder_trio import providers
from roder_trio.cli.choice import Choice, Flags, configured, fallback, make_engine
from roder_trio.cli.discovery import FoundServer
from roder_trio.cli.failure import UsageError

OPENAI = "https://api.openai.com/v1"
GOOGLE = "https://generativelanguage.googleapis.com"
CLAUDE = "claude-sonnet-5-5"
LOCAL = FoundServer("ollama", "http://127.0.0.1:11434/v1", "llama")


def summary(choice: Choice | None) -> tuple[str | None, ...] | None:
    """What decides where a request goes, without the words."""
    return None if choice is None else (choice.provider, choice.model, choice.base_url, choice.api_key)


CASES = [
    (Flags(), {}, None),
    (Flags(model="m"), {}, None),
    (Flags(), {"RODER_TRIO_PROVIDER": "", "OPENAI_API_KEY": ""}, None),
    (Flags(provider="offline"), {"RODER_TRIO_PROVIDER": "ollama"}, ("offline", None, None, None)),
    (Flags(), {"RODER_TRIO_PROVIDER": "offline", "OPENAI_API_KEY": "k"}, ("offline", None, None, None)),
    (Flags(), {"RODER_TRIO_PROVIDER": "vllm"}, ("vllm", None, "http://127.0.0.1:8000/v1", None)),
    (Flags(), {"OPENAI_API_KEY": "k"}, ("openai", "gpt-5-mini", OPENAI, "k")),
    (Flags(model="m"), {"OPENAI_API_KEY": "k"}, ("openai", "m", OPENAI, "k")),
    (Flags(api_key_env="K"), {"K": "x", "OPENAI_API_KEY": "k"}, ("openai", "gpt-5-mini", OPENAI, "x")),
    (Flags(), {"ANTHROPIC_API_KEY": "a"}, ("anthropic", CLAUDE, "https://api.anthropic.com", "a")),
    (Flags(), {"GOOGLE_API_KEY": "g"}, ("gemini", "gemini-2.5-flash", GOOGLE, "g")),
    (Flags(), {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "g"}, ("gemini", "gemini-2.5-flash", GOOGLE, "g")),
    (Flags(), {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "k"}, ("openai", "gpt-5-mini", OPENAI, "k")),
    (
        Flags(api_key_env="ANTHROPIC_API_KEY"),
        {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "k"},
        ("anthropic", CLAUDE, "https://api.anthropic.com", "a"),
    ),
    (Flags(provider="google", model="m"), {"GEMINI_API_KEY": "g"}, ("gemini", "m", GOOGLE, "g")),
    (Flags(provider="chat"), {"OPENAI_API_KEY": "k"}, ("chat", "gpt-5-mini", OPENAI, "k")),
    (Flags(), {"XAI_API_KEY": "x"}, ("xai", None, "https://api.x.ai/v1", "x")),
    (
        Flags(provider="openai", base_url="http://h/v1"),
        {"OPENAI_API_KEY": "k"},
        ("openai", "gpt-5-mini", "http://h/v1", None),
    ),
    (Flags(provider="lmstudio", model="m"), {}, ("lmstudio", "m", "http://127.0.0.1:1234/v1", None)),
    (Flags(base_url="http://h/v1"), {"OPENAI_API_KEY": "k"}, ("custom", None, "http://h/v1", None)),
    (Flags(base_url="http://h/v1", api_key_env="K"), {"K": "x"}, ("custom", None, "http://h/v1", "x")),
    (Flags(provider="mine", base_url="http://h/v1"), {}, ("mine", None, "http://h/v1", None)),
    (Flags(provider="ollama", base_url="http://h/v1"), {}, ("ollama", None, "http://h/v1", None)),
]


@pytest.mark.parametrize(("flags", "environ", "expected"), CASES)
def test_flags_come_before_the_environment_and_a_name_before_a_key(
    flags: Flags, environ: dict[str, str], expected: tuple[str | None, ...] | None
) -> None:
    assert summary(configured(flags, environ)) == expected


@pytest.mark.parametrize(
    ("flags", "environ", "word"),
    [
        (Flags(provider="nobody"), {}, "nobody"),
        (Flags(), {"RODER_TRIO_PROVIDER": "nobody"}, "nobody"),
        (Flags(provider="openai"), {}, "OPENAI_API_KEY"),
        (Flags(provider="gemini"), {"OPENAI_API_KEY": "k"}, "GEMINI_API_KEY, GOOGLE_API_KEY: none of these is set"),
        (Flags(api_key_env="MISSING"), {"OPENAI_API_KEY": "k"}, "MISSING"),
        (Flags(provider="offline", base_url="http://h/v1"), {}, "--base-url"),
        (Flags(provider="offline", api_key_env="K"), {"K": "x"}, "--api-key-env"),
        (Flags(base_url="localhost:8000"), {}, "--base-url"),
        (Flags(base_url="file:///etc/passwd"), {}, "--base-url"),
        (Flags(base_url="http://[bad"), {}, "--base-url"),
        (Flags(base_url="http:///v1"), {}, "--base-url"),
        (Flags(base_url="http://h:99999/v1"), {}, "--base-url"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_and_says_what_to_do(
    flags: Flags, environ: dict[str, str], word: str
) -> None:
    with pytest.raises(UsageError, match=word):
        configured(flags, environ)


def test_a_choice_without_a_key_is_made_where_none_is_needed() -> None:
    choice = configured(Flags(provider="anthropic"), {}, needs_key=False)
    assert summary(choice) == ("anthropic", CLAUDE, "https://api.anthropic.com", None)
    with pytest.raises(UsageError, match="MISSING"):
        configured(Flags(provider="anthropic", api_key_env="MISSING"), {}, needs_key=False)


@pytest.mark.parametrize(
    ("provider", "kind"),
    [
        ("openai", providers.OpenAIResponses),
        ("anthropic", providers.Anthropic),
        ("gemini", providers.Gemini),
        ("chat", providers.ChatCompletions),
        ("groq", providers.ChatCompletions),
        ("ollama", providers.ChatCompletions),
        ("offline", providers.Offline),
    ],
)
def test_the_engine_speaks_the_providers_dialect(provider: str, kind: type) -> None:
    choice = configured(Flags(provider=provider), {}, needs_key=False)
    assert choice is not None
    engine = make_engine(choice)
    assert isinstance(engine, kind)
    assert engine.id == provider
    assert isinstance(make_engine(fallback(Flags(), LOCAL)), providers.ChatCompletions)
    assert isinstance(make_engine(fallback(Flags(), None)), providers.Offline)


def test_a_local_server_answers_before_the_offline_engine() -> None:
    assert summary(fallback(Flags(), LOCAL)) == ("ollama", "llama", LOCAL.base_url, None)
    assert summary(fallback(Flags(model="m"), LOCAL)) == ("ollama", "m", LOCAL.base_url, None)
    assert summary(fallback(Flags(), None)) == ("offline", None, None, None)


def test_a_key_and_a_password_are_secrets_and_never_shown() -> None:
    choice = configured(Flags(base_url="http://u:pw-1@h/v1", api_key_env="K"), {"K": "key-1"})
    assert choice is not None
    assert choice.secrets == ("key-1", "pw-1")
    assert "key-1" not in repr(choice)
