"""A tool that the host itself runs: each call is announced by an event, and answered by `resolve_external_tool`."""

import attrs

from roder_trio.errors import ToolDefinitionError
from roder_trio.ports import HostRunTool
from roder_trio.schema.tool import ToolSpec


@attrs.frozen(eq=False)
class ExternalTool(HostRunTool):
    """Declares a tool that the host runs; `timeout` is how many seconds a call waits for its answer, None: no limit."""

    spec: ToolSpec
    timeout: float | None = 300.0

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise ToolDefinitionError(f"The timeout of {self.spec.name!r} must be above 0 seconds, or None.")
