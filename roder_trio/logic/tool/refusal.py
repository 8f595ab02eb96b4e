"""Whether a call was run at all, told by its result: each refusal is an error whose text begins in a way of its own.

What a log holds of a refused call is this result, and nothing else says so. Whoever refuses takes the words from here.
"""

from typing import Final

from roder_trio.schema.transcript import ToolResult

UNKNOWN_TOOL: Final = "unknown_tool"
INVALID_ARGUMENTS: Final = "invalid arguments: "
DENIED_BY_HOOK: Final = "denied by hook"
POLICY_DENIED: Final = "policy denied: "
APPROVAL_DENIED: Final = "approval denied"
NOBODY_ANSWERED: Final = "approval timed out: nobody answered"
NOBODY_CAN_APPROVE: Final = "needs approval, and nobody can give it"
_BEGINNINGS: Final = (f"{UNKNOWN_TOOL}: ", INVALID_ARGUMENTS, DENIED_BY_HOOK, POLICY_DENIED)
_WHOLE: Final = (APPROVAL_DENIED, NOBODY_ANSWERED, NOBODY_CAN_APPROVE)


def was_refused(result: ToolResult) -> bool:
    """Whether the call of this result was not run: by lookup, arguments, a hook, policy, or want of consent."""
    return result.is_error and (result.result in _WHOLE or result.result.startswith(_BEGINNINGS))
