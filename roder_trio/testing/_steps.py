"""Doing something at one step of one task.

A step is what a task does between two checkpoints that let others run. After each, the task is blocked at such a
checkpoint: cancelled there it leaves there, and a process that dies there dies in the middle of what the task does.
"""

from collections.abc import Callable

import attrs
import trio


@attrs.define(eq=False)
class StepWatch(trio.abc.Instrument):
    """Calls `act` with the number, from 1, of each step that the watched task has done; put it into a trio run.

    `act` runs between two steps and must not wait.
    """

    act: Callable[[int], None]
    task: trio.lowlevel.Task | None = None
    steps: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the steps of the watched task."""
        if task is self.task:
            self.steps += 1
            self.act(self.steps)
