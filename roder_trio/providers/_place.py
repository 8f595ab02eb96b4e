"""What the shipped catalog knows of a server, by its name or its address."""

import functools
from urllib.parse import urlsplit

import attrs

from roder_trio.providers.catalog import Catalog, ProviderRow
from roder_trio.schema.inference import ModelDescriptor


@functools.cache
def _catalog() -> Catalog:
    return Catalog.load()


def known_server(dialect: str, id: str, base_url: str | None, usual_base_url: str) -> ProviderRow | None:
    """Return the row of a server that speaks a dialect; a key of one host never goes to another."""
    catalog = _catalog()
    rows = [row for row in catalog.providers if row.dialect == dialect]
    if base_url is None:
        named = catalog.provider(id)
        if named in rows:
            return named
    place = _place(base_url or usual_base_url)
    here = [row for row in rows if _place(row.base_url) == place]
    return next((row for row in here if row.id == id or id in row.aliases), here[0] if here else None)


def known_models(id: str, base_url: str) -> tuple[ModelDescriptor, ...]:
    """Return the rows of a server's models, as those of the engine `id`."""
    catalog, place = _catalog(), _place(base_url)
    here = [row.id for row in catalog.providers if _place(row.base_url) == place]
    known = {row.id: attrs.evolve(row, provider=id) for provider in here for row in catalog.models_of(provider)}
    return tuple(known.values())


def _place(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port
