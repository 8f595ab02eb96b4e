"""A coding agent: it reads a file, repairs it, adds a test, and this program prints what changed in its folder.

`ScriptedEngine` plays the model, so it runs offline and always goes the same way. With a real model, name a provider of
the catalog and have its key in the environment: `OPENAI_API_KEY=... python coding_agent.py openai`.
"""

import difflib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

import roder_trio as rt
from roder_trio import events, inference, providers, tools, transcript

BROKEN = "def mean(numbers):\n    return sum(numbers) / len(number)\n"
TEST = "from mean import mean\n\n\ndef test_mean():\n    assert mean([1, 2, 3]) == 2\n"


def calling(id: str, name: str, **arguments: Any) -> list[inference.InferenceEvent]:
    text = json.dumps(arguments)
    started, call = inference.ToolCallStarted(id, name), inference.ToolCallCompleted(id, name, text)
    return [started, call, inference.Completed("tool_use")]


SCRIPT: list[list[inference.InferenceEvent]] = [
    calling("1", "grep", pattern="def mean"),
    calling("2", "read_file", path="mean.py"),
    calling("3", "edit", path="mean.py", edits=[{"old": "len(number)", "new": "len(numbers)"}]),
    calling("4", "write_file", path="tests/test_mean.py", content=TEST),
    [inference.MessageDelta("`mean` divided by an unknown name. It has a test now."), inference.Completed("stop")],
]


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}


def print_changes(before: dict[str, str], after: dict[str, str]) -> None:
    for name in sorted(before | after):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        print(*difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm=""), sep="\n")


async def main(folder: Path) -> None:
    chosen = sys.argv[1:]
    engine = providers.ChatCompletions(chosen[0]) if chosen else providers.ScriptedEngine(SCRIPT)
    before = texts(folder)
    async with rt.open_runtime(engines=[engine], tools=tools.workspace_tools()) as runtime:
        thread = await runtime.create_thread(workspace=str(folder))
        async with runtime.turn(thread.thread_id, "mean.py raises NameError. Repair it and add a test.") as turn:
            async for envelope in turn:
                match envelope.event:
                    case events.TranscriptItemAppended(item=transcript.ToolCall(name=name, arguments=arguments)):
                        print(f"{name} {arguments[:70]}")
        print(turn.outcome.text if turn.outcome.status == "completed" else turn.outcome.error)
    print_changes(before, texts(folder))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        Path(place, "mean.py").write_text(BROKEN, "utf-8")
        trio.run(main, Path(place).resolve())
