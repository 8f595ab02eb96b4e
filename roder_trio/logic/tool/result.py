"""What a tool's failure looks like to the model: the exception's class and message, never its traceback."""

from roder_trio.errors import ToolError
from roder_trio.schema.tool import ToolOutput


def failure(error: Exception) -> ToolOutput:
    """Return the error result of a tool that raised `error`.

    A `ToolError` gives its text, also as the only content of a group; a group names each exception in it.
    """
    leaves = _leaves(error)
    if len(leaves) == 1 and isinstance(leaves[0], ToolError):
        return ToolOutput(str(leaves[0]), is_error=True)
    text = _named(error)
    if isinstance(error, ExceptionGroup):
        text = f"{text}: {'; '.join(map(_named, leaves))}"
    return ToolOutput(text, is_error=True)


def _leaves(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


def _named(error: Exception) -> str:
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
