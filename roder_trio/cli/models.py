"""The commands on models: which can be asked for."""

import os
from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import App, Parameter

import roder_trio as rt
from roder_trio.cli.choice import Flags, configured, fallback, make_engine
from roder_trio.cli.discovery import find_local_server
from roder_trio.cli.failure import DONE, explained
from roder_trio.cli.terminal import Terminal
from roder_trio.inference import ModelDescriptor

HEADINGS = ("model", "window", "output", "reasoning", "name")

models = App(name="models", help="Show the models that can be asked for.")


@models.command(name="list")
async def list_models(
    *,
    provider: Annotated[str | None, Parameter(help="Whose models; else those of who would answer.")] = None,
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server, such as http://host/v1.")] = None,
    api_key_env: Annotated[str | None, Parameter(help="The environment variable that holds the key.")] = None,
) -> int:
    """List a provider's models, with windows and longest answers in tokens.

    Without a key these are the models that are known beforehand.
    """
    terminal = Terminal.standard()
    with explained(terminal, "list the models") as result:
        flags = Flags(provider=provider, base_url=base_url, api_key_env=api_key_env)
        choice = configured(flags, os.environ, needs_key=False) or fallback(flags, await find_local_server())
        for secret in choice.secrets:
            terminal.hide(secret)
        terminal.note(f"{choice.provider}: {choice.because}")
        async with rt.open_runtime(engines=[make_engine(choice)]) as runtime:
            rows = await runtime.list_models(choice.provider)
        terminal.table(HEADINGS, model_cells(rows))
        result.code = DONE
    return result.code


def model_cells(rows: Iterable[ModelDescriptor]) -> Iterator[tuple[str, ...]]:
    """Yield the models that aren't hidden as the cells of a table."""
    for row in rows:
        if not row.hidden:
            window, output = (str(tokens or "") for tokens in (row.context_window, row.max_output_tokens))
            yield (row.id, window, output, " ".join(row.supported_reasoning), row.display_name or "")
