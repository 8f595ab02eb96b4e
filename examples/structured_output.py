"""Ask for an answer of a type: what comes back is an object of it, and an answer that doesn't fit is asked for again.

`ScriptedEngine` plays a model whose first answer is wrong in two places. With a real model, name a provider of the
catalog and have its key in the environment: `OPENAI_API_KEY=... python structured_output.py openai`. An engine that
takes no response format is offered the schema as a tool, `final_answer`; for the program nothing changes.
"""

import sys
from typing import Literal

import attrs
import trio

import roder_trio as rt
from roder_trio import inference, providers, transcript


@attrs.frozen
class Item:
    """One line of a receipt."""

    name: str
    cents: int = attrs.field(validator=attrs.validators.ge(0))


@attrs.frozen
class Receipt:
    """What was bought, in one currency."""

    shop: str
    currency: Literal["EUR", "USD"]
    items: list[Item]


def saying(text: str) -> list[inference.InferenceEvent]:
    usage = rt.TokenUsage(prompt_tokens=60, completion_tokens=30, total_tokens=90)
    return [inference.MessageDelta(text), inference.Usage(usage), inference.Completed("stop")]


SCRIPT = [
    saying('{"shop": "Corner", "currency": "euro", "items": [{"name": "bread", "cents": 3.2}]}'),
    saying('{"shop": "Corner", "currency": "EUR", "items": [{"name": "bread", "cents": 320}]}'),
]


async def main() -> None:
    engine = providers.ChatCompletions(sys.argv[1]) if sys.argv[1:] else providers.ScriptedEngine(SCRIPT)
    async with rt.open_runtime(engines=[engine], config=rt.RuntimeConfig(output_retries=2)) as runtime:
        thread = await runtime.create_thread()
        message = "Corner shop: one bread, 3.20 euros. Read this receipt."
        outcome = await runtime.run_turn(thread.thread_id, message, output_type=Receipt)
        if outcome.status != "completed":
            print(f"{outcome.error_kind}: {outcome.error}")
            return
        receipt = outcome.output
        assert isinstance(receipt, Receipt)
        print(receipt)
        print(f"{sum(item.cents for item in receipt.items)} cents in {receipt.currency}; {outcome.usage}")

        snapshot = await runtime.load_thread(thread.thread_id)
        assert snapshot is not None
        asked = [item.text for item in snapshot.turns[-1].items if isinstance(item, transcript.UserMessage)]
        print("What the model was told:", *asked, sep="\n")


trio.run(main)
