"""What is known of providers and their models before anyone is asked: data files, and look-ups in them.

The shipped `catalog.toml` lies beside this module; a user's file is merged over it, field by field of each row. Its
tables are `[providers.<id>]` and `[models.<provider>."<id>"]`. A model's `price` is in US dollars per million tokens,
by bucket: `prompt` (what isn't cached), `cached`, `creation`, `completion`; `price.tiers.<name>` is that of a service
tier. Files are read once, by `Catalog.load`, never at import. Nothing is decided by how a model is called: a model
without a row runs with cautious defaults.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from roder_trio.schema.cost import BUCKETS, Price
from roder_trio.schema.inference import ModelDescriptor

DIALECTS = ("openai_responses", "chat_completions", "anthropic", "gemini", "offline")
SUPPORTS = (
    "compaction",
    "images",
    "tools",
    "structured",
    "sampling",
    "parallel",
    "prompt_cache",
    "mid_system",
    "phases",
    "freeform",
)
REASONING_STYLES = ("effort", "level", "budget", "toggle", "none")

Row: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Any], str | None]
"""Says what a value should be, or None if it is that."""


@attrs.frozen(kw_only=True)
class ProviderRow:
    """A provider: where it is, how it speaks, and which variables hold its key."""

    id: str
    dialect: str
    name: str | None = None
    default_model: str | None = None
    base_url: str = ""
    env_keys: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """Names of environment variables, the first that is set counts."""
    requires_auth: bool = True
    flags: Mapping[str, Any] = attrs.field(factory=dict)
    """How its wire differs: fields of the dialect's profile."""
    sort_order: int = 0
    aliases: tuple[str, ...] = attrs.field(default=(), converter=tuple)


@attrs.frozen(kw_only=True)
class Catalog:
    """Rows of providers, in their order, and of models."""

    providers: tuple[ProviderRow, ...]
    models: tuple[ModelDescriptor, ...]
    _exact: dict[tuple[str, str], ModelDescriptor] = attrs.field(init=False, repr=False, eq=False)
    _by_id: dict[str, list[ModelDescriptor]] = attrs.field(init=False, repr=False, eq=False)
    _by_name: dict[str, ProviderRow] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        by_id: dict[str, list[ModelDescriptor]] = {}
        for row in self.models:
            by_id.setdefault(row.id, []).append(row)
        object.__setattr__(self, "_exact", {(row.provider, row.id): row for row in self.models})
        object.__setattr__(self, "_by_id", by_id)
        by_name = {alias: row for row in reversed(self.providers) for alias in row.aliases}
        by_name |= {row.id: row for row in reversed(self.providers)}
        object.__setattr__(self, "_by_name", by_name)

    @classmethod
    def load(cls, user_file: str | None = None) -> "Catalog":
        """Read the shipped file, and a user's over it. Raises ValueError that names the path and the key."""
        if user_file is None:
            return _shipped()
        providers, models = _read_shipped()
        more_providers, more_models = _read(user_file, _text_of(user_file))
        _merge(providers, more_providers)
        _merge(models, more_models)
        return cls._of(user_file, providers, models)

    @classmethod
    def _of(cls, source: str, providers: dict[str, Row], models: dict[tuple[str, str], Row]) -> "Catalog":
        rows = [_provider(source, id, row) for id, row in providers.items()]
        rows.sort(key=lambda row: (row.sort_order, row.id))
        return cls(providers=tuple(rows), models=tuple(_model(*key, row) for key, row in models.items()))

    def provider(self, id: str) -> ProviderRow | None:
        """Return the row of a provider, by its id or an alias."""
        return self._by_name.get(id)

    def model(self, provider: str, model: str) -> ModelDescriptor | None:
        """Return the row of exactly this pair, else that of the id alone if only one provider has it."""
        exact = self._exact.get((provider, model))
        if exact is not None:
            return exact
        named = self._by_id.get(model, ())
        return named[0] if len(named) == 1 else None

    def models_of(self, provider: str) -> tuple[ModelDescriptor, ...]:
        """Return the rows of a provider's models, in the file's order."""
        return tuple(row for row in self.models if row.provider == provider)

    def price(self, provider: str, model: str) -> Price | None:
        """Return the price of exactly this pair; None if none is known. A price is never guessed."""
        row = self._exact.get((provider, model))
        return None if row is None else row.price


# -- reading -----------------------------------------------------------------------------------------------------------


@cache
def _shipped() -> Catalog:
    """The shipped file alone, read once: that takes longer than all else that opening a runtime does."""
    return Catalog._of("catalog.toml", *_read_shipped())  # noqa: SLF001  # the same module


def _read_shipped() -> tuple[dict[str, Row], dict[tuple[str, str], Row]]:
    shipped = files("roder_trio.providers").joinpath("catalog.toml")
    return _read("catalog.toml", shipped.read_text(encoding="utf-8"))


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The catalog {path} can't be read: {error}.") from error


def _read(path: str, text: str) -> tuple[dict[str, Row], dict[tuple[str, str], Row]]:
    """Return the rows of a file as they stand there, each field checked."""
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"The catalog {path} is no TOML: {error}.") from error
    for key in document:
        if key not in ("providers", "models"):
            raise ValueError(f"The catalog {path} has the unknown key {key!r}; known are 'providers' and 'models'.")
    providers = dict(_tables(path, "providers", document.get("providers", {})))
    for id, row in providers.items():
        _check(path, f"providers.{id}", row, _PROVIDER_FIELDS)
    models: dict[tuple[str, str], Row] = {}
    for provider, rows in _tables(path, "models", document.get("models", {})):
        for id, row in _tables(path, f"models.{provider}", rows):
            _check(path, f"models.{provider}.{id}", row, _MODEL_FIELDS)
            models[provider, id] = row
    return providers, models


def _tables(path: str, key: str, value: Any) -> Iterator[tuple[str, Row]]:
    """Yield the tables inside a table."""
    named = {key: value, **({f"{key}.{name}": row for name, row in value.items()} if isinstance(value, dict) else {})}
    for name, row in named.items():
        if not isinstance(row, dict):
            raise ValueError(f"The catalog {path} has {name} = {row!r}, which should be a table.")
    yield from value.items()


def _check(path: str, key: str, row: Row, fields: Mapping[str, Check]) -> None:
    for name, value in row.items():
        if name not in fields:
            raise ValueError(f"The catalog {path} has the unknown key {key}.{name}; known are {', '.join(fields)}.")
        wanted = fields[name](value)
        if wanted:
            raise ValueError(f"The catalog {path} has {key}.{name} = {value!r}, which should be {wanted}.")


def _merge(rows: dict[Any, Row], more: Mapping[Any, Row]) -> None:
    for key, row in more.items():
        rows[key] = {**rows.get(key, {}), **row}


def _provider(path: str, id: str, row: Row) -> ProviderRow:
    if "dialect" not in row:
        raise ValueError(f"The catalog {path} lacks the key providers.{id}.dialect; name one of {', '.join(DIALECTS)}.")
    return ProviderRow(id=id, **row)


def _model(provider: str, id: str, row: Row) -> ModelDescriptor:
    fields = dict(row)
    fields["supports"] = frozenset(fields.get("supports", ()))
    fields["supported_reasoning"] = tuple(fields.get("supported_reasoning", ()))
    if "price" in row:
        fields["price"] = _price(row["price"])
    return ModelDescriptor(provider=provider, id=id, **fields)


def _price(table: Row) -> Price:
    """Return the price of a row: amounts by bucket, and a table of such amounts for each service tier in `tiers`."""
    return Price({name: amount for name, amount in table.items() if name != "tiers"}, table.get("tiers", {}))


def _is_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _is_flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _is_integer(value: Any) -> str | None:
    return None if type(value) is int else "an integer"


def _is_positive(value: Any) -> str | None:
    return None if type(value) is int and value > 0 else "an integer above 0"


def _is_limit(value: Any) -> str | None:
    return None if type(value) is int and value >= 0 else "an integer of at least 0"


def _is_table(value: Any) -> str | None:
    return None if isinstance(value, dict) else "a table"


def _is_texts(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(part, str) for part in value)
    return None if good else "a list of texts"


def _is_supports(value: Any) -> str | None:
    good = isinstance(value, list) and all(part in SUPPORTS for part in value)
    return None if good else f"a list of some of {', '.join(SUPPORTS)}"


def _is_price(value: Any) -> str | None:
    try:
        _price(value)
    except (ValueError, AttributeError):
        return f"a table of dollars per million tokens by {', '.join(BUCKETS)}, and of such by tier in 'tiers'"
    return None


def _is_one_of(names: tuple[str, ...]) -> Check:
    return lambda value: None if value in names else f"one of {', '.join(names)}"


_PROVIDER_FIELDS: Mapping[str, Check] = {
    "name": _is_text,
    "dialect": _is_one_of(DIALECTS),
    "default_model": _is_text,
    "base_url": _is_text,
    "env_keys": _is_texts,
    "requires_auth": _is_flag,
    "flags": _is_table,
    "sort_order": _is_integer,
    "aliases": _is_texts,
}
_MODEL_FIELDS: Mapping[str, Check] = {
    "display_name": _is_text,
    "description": _is_text,
    "default_reasoning": _is_text,
    "supported_reasoning": _is_texts,
    "context_window": _is_positive,
    "max_context_window": _is_positive,
    "max_output_tokens": _is_positive,
    "auto_compact_token_limit": _is_limit,
    "supports": _is_supports,
    "reasoning_style": _is_one_of(REASONING_STYLES),
    "hidden": _is_flag,
    "price": _is_price,
}
