from decimal import Decimal

import pytest

from roder_trio import providers
from roder_trio.cli.discovery import LOCAL_SERVERS
from roder_trio.logic.compaction import threshold
from roder_trio.providers.catalog import Catalog
from roder_trio.providers.offline import Offline
from roder_trio.schema.cost import Price

ENGINES = {
    "openai_responses": providers.OpenAIResponses,
    "chat_completions": providers.ChatCompletions,
    "anthropic": providers.Anthropic,
    "gemini": providers.Gemini,
}


@pytest.fixture
def user_file(tmp_path):
    def write(text):
        path = tmp_path / "models.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_shipped_catalog_has_the_providers_in_order():
    catalog = Catalog.load()
    ids = [row.id for row in catalog.providers]
    assert ids[:6] == ["openai", "anthropic", "gemini", "chat", "openrouter", "groq"]
    assert ids[-1] == "offline"
    assert {"ollama", "lmstudio", "llamacpp", "vllm", "deepseek", "mistral"} <= set(ids)
    openai = catalog.provider("openai")
    assert openai.base_url == "https://api.openai.com/v1"
    assert openai.env_keys == ("OPENAI_API_KEY",)
    assert openai.requires_auth
    assert catalog.provider("lm-studio") is catalog.provider("lmstudio")
    assert not catalog.provider("ollama").requires_auth
    assert catalog.provider("nobody") is None
    assert {row.dialect for row in catalog.providers} == {*ENGINES, "offline"}


def test_every_shipped_row_is_complete():
    catalog = Catalog.load()
    for row in catalog.providers:
        if row.dialect in ENGINES:
            engine = ENGINES[row.dialect](row.id, base_url=row.base_url)
            assert (engine.target.provider, engine.default_model) == (row.id, row.default_model)
            assert {name: getattr(engine.profile, name) for name in row.flags} == row.flags
            assert not row.base_url.endswith("/")
            assert bool(row.env_keys) is row.requires_auth
        if row.default_model is not None:
            assert catalog.model(row.id, row.default_model) is not None
    for model in catalog.models:
        assert catalog.provider(model.provider) is not None
        assert threshold(None, model) <= model.context_window
        assert model.default_reasoning is None or model.default_reasoning in model.supported_reasoning
        assert (model.reasoning_style != "none") is bool(model.supported_reasoning)


def test_local_servers_are_where_the_command_line_looks_for_them():
    catalog = Catalog.load()
    for server in LOCAL_SERVERS:
        assert catalog.provider(server.provider).base_url == server.base_url


async def test_the_offline_row_is_that_of_the_offline_engine():
    (model,) = await Offline().list_models()
    assert Catalog.load().model("offline", "offline") == model


def test_a_model_is_found_by_its_pair_else_by_its_id_if_one_provider_has_it(user_file):
    catalog = Catalog.load()
    assert catalog.model("openai", "gpt-4o").context_window == 128_000
    assert catalog.model("my-proxy", "gpt-4o") is catalog.model("openai", "gpt-4o")
    assert catalog.model("openai", "unknown") is None
    both = Catalog.load(user_file("[models.mine.gpt-4o]\ncontext_window = 9_000"))
    assert both.model("mine", "gpt-4o").context_window == 9_000
    assert both.model("openai", "gpt-4o").context_window == 128_000
    assert both.model("third", "gpt-4o") is None
    assert [row.id for row in both.models_of("mine")] == ["gpt-4o"]


def test_a_users_file_is_merged_field_by_field(user_file):
    path = user_file(
        """
        [providers.openai]
        base_url = "https://proxy.test/v1"
        [providers.mine]
        dialect = "chat_completions"
        env_keys = ["MINE"]
        sort_order = -1
        [models.openai.gpt-4o]
        auto_compact_token_limit = 50_000
        price = { prompt = 2.5, cached = 0.20, completion = 10, tiers = { flex = { prompt = 1.25 } } }
        [models.mine."big/model"]
        context_window = 1_000
        supports = ["compaction", "tools"]
        supported_reasoning = ["low"]
        reasoning_style = "level"
        hidden = true
        """
    )
    catalog = Catalog.load(path)
    openai = catalog.provider("openai")
    assert (openai.base_url, openai.name) == ("https://proxy.test/v1", "OpenAI")
    assert catalog.providers[0].id == "mine"
    changed = catalog.model("openai", "gpt-4o")
    assert (changed.auto_compact_token_limit, changed.context_window) == (50_000, 128_000)
    big = catalog.model("mine", "big/model")
    assert (big.supports, big.supported_reasoning, big.hidden) == ({"compaction", "tools"}, ("low",), True)
    amounts = {"prompt": Decimal("2.5"), "cached": Decimal("0.20"), "completion": Decimal(10)}
    price = catalog.price("openai", "gpt-4o")
    assert price == Price(amounts, {"flex": {"prompt": Decimal("1.25")}}) == changed.price
    assert all(isinstance(amount, Decimal) for amount in price.plain.values())
    assert catalog.price("openai", "gpt-4o-mini") is None
    assert catalog.price("other", "gpt-4o") is None
    assert Catalog.load() == Catalog.load() != catalog


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[model]", "'model'"),
        ("providers = 1", "providers"),
        ("[providers]\nmine = 1", "providers.mine"),
        ("[models]\nmine = 1", "models.mine"),
        ("[models.mine]\nm = 1", "models.mine.m"),
        ("[providers.mine]\nname = 'x'", "providers.mine.dialect"),
        ("[providers.mine]\ndialect = 'morse'", "providers.mine.dialect"),
        ("[providers.openai]\nname = 1", "providers.openai.name"),
        ("[providers.openai]\nenv_keys = 'KEY'", "providers.openai.env_keys"),
        ("[providers.openai]\nrequires_auth = 1", "providers.openai.requires_auth"),
        ("[providers.openai]\nflags = []", "providers.openai.flags"),
        ("[providers.openai]\nsort_order = true", "providers.openai.sort_order"),
        ("[providers.openai]\nid = 'x'", "providers.openai.id"),
        ("[models.openai.m]\ncontext_window = 0", "models.openai.m.context_window"),
        ("[models.openai.m]\ncontext_window = 1.5", "models.openai.m.context_window"),
        ("[models.openai.m]\nauto_compact_token_limit = -1", "models.openai.m.auto_compact_token_limit"),
        ("[models.openai.m]\nsupports = ['flying']", "models.openai.m.supports"),
        ("[models.openai.m]\nreasoning_style = 'deep'", "models.openai.m.reasoning_style"),
        ("[models.openai.m]\nprice = { prompt = -1 }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = { prompt = true }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = { input = 1 }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = { prompt = nan }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = { tiers = { flex = 1 } }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = { tiers = 1 }", "models.openai.m.price"),
        ("[models.openai.m]\nprice = 1", "models.openai.m.price"),
        ("[models.openai.m]\nprovider = 'x'", "models.openai.m.provider"),
        ("not toml", "TOML"),
    ],
)
def test_a_bad_users_file_is_a_value_error_that_names_the_path_and_the_key(user_file, text, key):
    path = user_file(text)
    with pytest.raises(ValueError) as caught:
        Catalog.load(path)
    assert path in str(caught.value)
    assert key in str(caught.value)


def test_a_missing_or_unreadable_users_file_is_a_value_error_that_names_the_path(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.toml"):
        Catalog.load(str(tmp_path / "absent.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary\.toml"):
        Catalog.load(str(binary))
