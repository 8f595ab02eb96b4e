"""The engines of a runtime, and what admission knows of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from roder_trio.actors._route import Substitute
from roder_trio.errors import UnknownProvider
from roder_trio.logic.thread.facts import EngineFacts
from roder_trio.ports import Fallback, InferenceEngine
from roder_trio.providers.catalog import Catalog
from roder_trio.schema.cost import Price
from roder_trio.schema.inference import ModelDescriptor


class EngineRegistry:
    """Engines by id, in the order they were given, with the rows that they or the catalog have for their models."""

    def __init__(self, engines: Iterable[InferenceEngine | Fallback], catalog: Catalog) -> None:
        self.engines: dict[str, InferenceEngine] = {}
        self.facts: dict[str, EngineFacts] = {}
        self.substitutes: dict[str, tuple[Substitute, ...]] = {}
        """The engines that take over from another, by its id."""
        self._catalog = catalog
        self._given_prices: dict[tuple[str, str], Price] = {}
        for given in engines:
            engine, *others = given.engines if isinstance(given, Fallback) else (given,)
            if engine.id in self.engines:
                raise ValueError(f"two engines have the id {engine.id!r}; give each an id of its own")
            self.engines[engine.id] = engine
            self.facts[engine.id] = self._facts(engine)
            self.substitutes[engine.id] = tuple(Substitute(other, self._facts(other)) for other in others)

    def __iter__(self) -> Iterator[InferenceEngine]:
        """All engines, each once, those that only take over included."""
        others = (other.engine for row in self.substitutes.values() for other in row)
        return iter({id(engine): engine for engine in (*self.engines.values(), *others)}.values())

    def _facts(self, engine: InferenceEngine) -> EngineFacts:
        row, name = self._catalog.provider(engine.id), self.catalog_name(engine.id)
        known = self._catalog.models_of(name)
        if known:
            engine.use_models(tuple(attrs.evolve(model, provider=engine.id) for model in known))
        for model in engine.known_models:
            if model.price is not None:
                self._given_prices[engine.id, model.id] = model.price
        return EngineFacts(
            capabilities=engine.capabilities,
            default_model=getattr(engine, "default_model", None) or (row.default_model if row else None),
            models=_Rows(name, engine.known_models, self._catalog),
            target=engine.target,
        )

    def __getitem__(self, provider: str) -> InferenceEngine:
        engine = self.engines.get(provider)
        if engine is None:
            raise UnknownProvider(provider, tuple(self.engines))
        return engine

    def price(self, provider: str, model: str) -> Price | None:
        """Return the price of exactly this pair; None if none is known. A price is never guessed."""
        given = self._given_prices.get((provider, model))
        return given or self._catalog.price(self.catalog_name(provider), model)

    def catalog_name(self, provider: str) -> str:
        """Return what the catalog calls a provider, where the engine goes by an alias of it."""
        row = self._catalog.provider(provider)
        return provider if row is None else row.id

    async def list_models(self, provider: str | None) -> Sequence[ModelDescriptor]:
        """Return the models of one engine, or of all in their order. Raises UnknownProvider, ProviderFailure."""
        engines = list(self.engines.values()) if provider is None else [self[provider]]
        return [model for engine in engines for model in await engine.list_models()]

    async def find_default_model(self, provider: str) -> bool:
        """Ask an engine for its models and take the first as its default; False if it lists none.

        Cancelled, nothing is taken. Raises UnknownProvider, ProviderFailure.
        """
        models = await self[provider].list_models()
        if not models:
            return False
        facts = self.facts[provider]
        listed = {model.id: model for model in models}
        rows = MappingProxyType({**listed, **{id: row for id in listed if (row := facts.models.get(id)) is not None}})
        self.facts[provider] = attrs.evolve(facts, default_model=models[0].id, models=rows)
        return True


class _Rows(Mapping[str, ModelDescriptor]):
    """The rows of one engine's models: its own first, then the catalog's as that is looked up."""

    def __init__(self, provider: str, own: Sequence[ModelDescriptor], catalog: Catalog) -> None:
        self._provider = provider
        self._own = {row.id: row for row in own}
        self._catalog = catalog

    def __getitem__(self, model: str) -> ModelDescriptor:
        row = self._own.get(model) or self._catalog.model(self._provider, model)
        if row is None:
            raise KeyError(model)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **{row.id: row for row in self._catalog.models_of(self._provider)}})

    def __len__(self) -> int:
        return sum(1 for _ in self)
