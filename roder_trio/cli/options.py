"""What the commands that talk to a model can be told, and what follows from it."""

import os
from pathlib import Path
from typing import Annotated, Literal

import attrs
import platformdirs
from cyclopts import Parameter

import roder_trio as rt
from roder_trio import tools
from roder_trio.cli.choice import Flags
from roder_trio.cli.failure import UsageError

STORE_VARIABLE = "RODER_TRIO_STORE"

Mode = Literal["default", "accept_all", "plan", "bypass"]
Store = Annotated[
    str | None,
    Parameter(
        help=f"Where the threads are: a database file, a folder of journals, or a URL postgresql://...; "
        f"else ${STORE_VARIABLE}, else a database in your data folder."
    ),
]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ModelOptions:
    """The options of the commands that talk to a model on a thread that they name themselves."""

    provider: Annotated[str | None, Parameter(help="Who answers: openai, anthropic, gemini, chat, ollama ...")] = None
    model: Annotated[str | None, Parameter(help="The model to ask.")] = None
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server, such as http://host/v1.")] = None
    api_key_env: Annotated[str | None, Parameter(help="The environment variable that holds the key.")] = None
    policy: Annotated[Mode, Parameter(help="Which calls need your consent.")] = "default"
    workspace: Annotated[str | None, Parameter(help="The folder that the tools work in; else the current one.")] = None
    no_tools: Annotated[bool, Parameter(negative="", help="Offer the model no tools.")] = False
    store: Store = None
    json: Annotated[bool, Parameter(negative="", help="Print each event as a line of JSON.")] = False

    @property
    def flags(self) -> Flags:
        """What these say about the engine."""
        return Flags(provider=self.provider, model=self.model, base_url=self.base_url, api_key_env=self.api_key_env)

    def tools_for(self, engine: rt.InferenceEngine) -> tuple[rt.Tool, ...]:
        """Return the tools to offer; none to an engine that can't call them."""
        if self.no_tools or not engine.capabilities.tool_calls:
            return ()
        return (*tools.workspace_tools(), tools.shell_tool())

    def on(self, thread: str) -> "Options":
        """Return these, with that thread."""
        return Options(thread=thread, **{field.name: getattr(self, field.name) for field in attrs.fields(ModelOptions)})

    def folder(self) -> str:
        """Return the absolute path of the workspace. Raises UsageError if there is no such folder, OSError."""
        path = Path(self.workspace or "").absolute()
        if not path.is_dir():
            raise UsageError(f"--workspace must be a folder; there is none at {str(path)!r}")
        return str(path)


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Options(ModelOptions):
    """The options of the commands that talk to a model."""

    thread: Annotated[str | None, Parameter(help="Go on with this thread instead of a new one.")] = None


DEFAULTS = Options()
MODEL_DEFAULTS = ModelOptions()


def store_place(store: str | None) -> str:
    """Return where the threads are: as the flag or the environment says, else a database in the user's data folder."""
    named = store or os.environ.get(STORE_VARIABLE)
    return named or str(platformdirs.user_data_path("roder-trio", appauthor=False) / "threads.db")
