"""A session of many turns: each line typed is a message, and while the model speaks it steers the running turn.

Where nobody attends (the input is no terminal, or the output is JSON) every line is a turn, one after the other, and
none steers: what a script brings is said in its order, however fast the model is.
"""

import math

import attrs
import trio

import roder_trio as rt
from roder_trio.cli.conversation import Conversation
from roder_trio.cli.keyboard import Keyboard

PROMPT = "> "


async def converse(conversation: Conversation, keyboard: Keyboard, *, attended: bool) -> None:
    """Run turns until the input ends and the last of its messages is answered.

    Cancelling it interrupts the turn that runs. Raises RoderTrioError, OSError.
    """
    session = _Session(conversation, keyboard, attended)
    send, receive = trio.open_memory_channel[str](math.inf if attended else 0)
    async with trio.open_nursery() as nursery, receive:
        nursery.start_soon(session.listen, send)
        await session.speak(receive)
        nursery.cancel_scope.cancel()


@attrs.frozen
class _Session:
    """Who listens to the person, and who speaks with the model."""

    conversation: Conversation
    keyboard: Keyboard
    attended: bool

    async def speak(self, messages: trio.MemoryReceiveChannel[str]) -> None:
        """Run a turn for each message."""
        self._prompt(messages)
        async for message in messages:
            if message.strip():
                await self.conversation.say(message)
            self._prompt(messages)

    async def listen(self, messages: trio.MemorySendChannel[str]) -> None:
        """Take what is typed, and once nothing more comes answer every question with no."""
        async with messages:
            while (line := await self.keyboard.line()) is not None:
                self.conversation.terminal.answered()
                await self._take(line, messages)
        await self.conversation.questions.attend(None)

    def _prompt(self, messages: trio.MemoryReceiveChannel[str]) -> None:
        state = messages.statistics()
        if self.attended and state.open_send_channels and not state.current_buffer_used:
            self.conversation.terminal.ask(PROMPT)

    async def _take(self, line: str, messages: trio.MemorySendChannel[str]) -> None:
        conversation = self.conversation
        if conversation.questions.is_open:
            await conversation.questions.answer(line)
        elif not self.attended or conversation.turn_id is None:
            await messages.send(line)
        else:
            await self._steer(line, messages)

    async def _steer(self, line: str, messages: trio.MemorySendChannel[str]) -> None:
        """Tell the running turn; once it has decided to end, the line is the next message."""
        thread_id, turn_id = self.conversation.thread_id, self.conversation.turn_id
        try:
            await self.conversation.runtime.steer_turn(thread_id or "", turn_id or "", line)
        except rt.NoActiveTurn:
            await messages.send(line)
        except rt.SteerQueueFull as error:
            self.conversation.terminal.error(f"the model was not told: {error}")
            await trio.lowlevel.checkpoint()
