"""The engines of a runtime, and what admission knows of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from roder_trio.actors._route import Substitute
from roder_trio.errors import UnknownProvider
from roder_trio.logic.thread.facts import EngineFacts
from roder_trio.ports import Fallback, InferenceEngine
from roder_trio.providers.catalog import Catalog
from roder_trio.schema.inference import ModelDescriptor


class EngineRegistry:
    """Engines by id, in the order they were given, with the catalog's rows for them."""

    def __init__(self, engines: Iterable[InferenceEngine | Fallback], catalog: Catalog) -> None:
        self.engines: dict[str, InferenceEngine] = {}
        self.facts: dict[str, EngineFacts] = {}
        self.substitutes: dict[str, tuple[Substitute, ...]] = {}
        """The engines that take over from another, by its id."""
        self._catalog = catalog
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
        row = self._catalog.provider(engine.id)
        return EngineFacts(
            capabilities=engine.capabilities,
            default_model=getattr(engine, "default_model", None) or (row.default_model if row else None),
            models=_Rows(engine.id, self._catalog),
            target=engine.target,
        )

    def __getitem__(self, provider: str) -> InferenceEngine:
        engine = self.engines.get(provider)
        if engine is None:
            raise UnknownProvider(provider, tuple(self.engines))
        return engine

    async def list_models(self, provider: str | None) -> Sequence[ModelDescriptor]:
        """Return the models of one engine, or of all in their order. Raises UnknownProvider, ProviderFailure."""
        engines = list(self.engines.values()) if provider is None else [self[provider]]
        return [model for engine in engines for model in await engine.list_models()]

    async def find_default_model(self, provider: str) -> bool:
        """Ask an engine for its models and take the first as its default; False if it lists none."""
        models = await self[provider].list_models()
        if not models:
            return False
        facts = self.facts[provider]
        listed = {model.id: model for model in models}
        rows = MappingProxyType({**listed, **{id: row for id in listed if (row := facts.models.get(id)) is not None}})
        self.facts[provider] = attrs.evolve(facts, default_model=models[0].id, models=rows)
        return True


class _Rows(Mapping[str, ModelDescriptor]):
    """The catalog's rows as one engine looks them up."""

    def __init__(self, provider: str, catalog: Catalog) -> None:
        self._provider = provider
        self._catalog = catalog

    def __getitem__(self, model: str) -> ModelDescriptor:
        row = self._catalog.model(self._provider, model)
        if row is None:
            raise KeyError(model)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(row.id for row in self._catalog.models_of(self._provider))

    def __len__(self) -> int:
        return len(self._catalog.models_of(self._provider))
