"""Ask before a tool runs: a call to a colleague is approved, one to a stranger denied, and the model hears of both.

In mode `default` a tool with effects that nobody declared harmless waits for `resolve_approval`; here a rule answers,
in your program perhaps a person. `ScriptedEngine` plays the model. With a real one, name a provider of the catalog and
have its key in the environment: `OPENAI_API_KEY=... python approval.py openai`.
"""

import json
import sys

import trio

import roder_trio as rt
from roder_trio import events, inference, providers, transcript


@rt.tool(effects={"network"})
async def send_mail(to: str, text: str) -> str:
    """Send a text by mail to one address."""
    await trio.lowlevel.checkpoint()  # a real one would talk to a server
    return f"sent {len(text)} characters to {to}"


def mail(id: str, to: str) -> list[inference.InferenceEvent]:
    arguments = json.dumps({"to": to, "text": "The numbers of May."})
    return [
        inference.ToolCallStarted(id, "send_mail"),
        inference.ToolCallCompleted(id, "send_mail", arguments),
    ]


SCRIPT: list[list[inference.InferenceEvent]] = [
    [*mail("1", "ada@example.org"), *mail("2", "eve@elsewhere.example"), inference.Completed("tool_use")],
    [inference.MessageDelta("Ada has the numbers. Eve was not allowed."), inference.Completed("stop")],
]


async def main() -> None:
    engine = providers.ChatCompletions(sys.argv[1]) if sys.argv[1:] else providers.ScriptedEngine(SCRIPT)
    config = rt.RuntimeConfig(policy_mode="default", approval_timeout=60.0)
    async with rt.open_runtime(engines=[engine], tools=[send_mail], config=config) as runtime:
        thread = await runtime.create_thread()
        message = "Send the numbers of May to ada@example.org and to eve@elsewhere.example."
        async with runtime.turn(thread.thread_id, message) as turn:
            async for envelope in turn:
                match envelope.event:
                    case events.ApprovalRequested(approval_id=approval_id, name=name, arguments=arguments):
                        approved = json.loads(arguments)["to"].endswith("@example.org")
                        print(f"{name} {arguments}: {'approved' if approved else 'denied'}")
                        await runtime.resolve_approval(approval_id, approved)
                    case events.TranscriptItemAppended(item=transcript.ToolResult(result=result)):
                        print(f"  the model hears: {result}")
        print(turn.outcome.text if turn.outcome.status == "completed" else turn.outcome.error)


trio.run(main)
