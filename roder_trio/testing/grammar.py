"""What every engine's stream must look like, as one check.

`check_grammar` raises AssertionError with the offence. It knows nothing of the provider behind the stream.
"""

from collections.abc import Sequence

from roder_trio.schema.inference import (
    Completed,
    Failed,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    InferenceEvent,
    MessageDelta,
    ProviderMetadata,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)


def check_grammar(events: Sequence[InferenceEvent], failure: BaseException | None = None) -> None:
    """Assert that `events`, then the raised `failure` if any, are a well-formed stream.

    A stream is any events, the replay metadata if the engine has some, and `Completed`; or any events and a failure.
    """
    ends = [position for position, event in enumerate(events) if isinstance(event, Completed)]
    assert not any(isinstance(event, Failed) for event in events), "a failure is raised, not told by an event"
    if failure is not None:
        assert not ends, "a stream that failed also completed"
    else:
        assert ends == [len(events) - 1], "a stream ends with exactly one Completed, and nothing after it"
        _check_metadata(events)
    _check_deltas(events)
    _check_calls(events, complete=failure is None)
    _check_hosted(events)


def _check_metadata(events: Sequence[InferenceEvent]) -> None:
    replays = [
        position
        for position, event in enumerate(events)
        if isinstance(event, ProviderMetadata) and "dialect" in event.payload
    ]
    assert replays in ([], [len(events) - 2]), "replay metadata stands right before Completed, once"


def _check_deltas(events: Sequence[InferenceEvent]) -> None:
    for event in events:
        match event:
            case MessageDelta(text=text) | ReasoningDelta(text=text) | ToolCallDelta(arguments_delta=text):
                assert text, f"an empty delta: {event}"


def _check_calls(events: Sequence[InferenceEvent], *, complete: bool) -> None:
    names: dict[str, str] = {}
    deltas: dict[str, str] = {}
    completed: list[str] = []
    for event in events:
        match event:
            case ToolCallStarted(id=id, name=name):
                assert id, "a call without an id"
                assert id not in names, f"the id {id!r} is used twice"
                names[id], deltas[id] = name, ""
            case ToolCallDelta(id=id, arguments_delta=delta):
                assert id in names, f"a delta of {id!r}, which never started"
                assert id not in completed, f"a delta of {id!r}, which is complete"
                deltas[id] += delta
            case ToolCallCompleted(id=id, name=name, arguments=arguments):
                assert names.get(id) == name, f"{id!r} completes as {name!r}, started as {names.get(id)!r}"
                assert id not in completed, f"{id!r} completes twice"
                assert deltas[id] in ("", arguments), f"the deltas of {id!r} joined are not its arguments"
                completed.append(id)
    started = list(names)
    assert completed == started[: len(completed)], "calls complete in the order of their starts"
    assert not complete or completed == started, "a started call never completed"


def _check_hosted(events: Sequence[InferenceEvent]) -> None:
    is_open: dict[str, bool] = {}
    for event in events:
        match event:
            case HostedToolCallStarted(id=id):
                assert id not in is_open, f"the hosted call {id!r} starts twice"
                is_open[id] = True
            case HostedToolCallCompleted(id=id):
                assert is_open.get(id), f"the hosted call {id!r} ends without being open"
                is_open[id] = False
