"""The tree of errors: what a message says, and what may be tried again."""

import pytest

from roder_trio import errors
from roder_trio.errors import ProviderFailure, ProviderFailureKind

EXAMPLES: list[tuple[errors.RoderTrioError, str]] = [
    (errors.RuntimeDraining(), "resume_accepting_turns"),
    (errors.RuntimeClosed(), "async with open_runtime"),
    (errors.ThreadNotFound("t-1"), "t-1"),
    (errors.ThreadNotFound(None), "by its id, a text such as `thread.thread_id`, not by NoneType"),  # type: ignore[arg-type]
    (errors.ThreadFailed("t-1", "disk full"), "disk full"),
    (errors.ThreadBusy("turn-1"), "turn-1"),
    (errors.EmptyMessage(), "text or at least one image"),
    (errors.BadWorkspace("here"), "here"),
    (errors.UnknownProvider("p", ("a", "b")), "it has: a, b"),
    (errors.UnknownProvider("p"), "it has: none"),
    (errors.UnsupportedOption("model"), "model"),
    (errors.UnsupportedOption("model", "name one"), "here: name one"),
    (errors.NoActiveTurn("turn-1"), "turn-1"),
    (errors.SteerQueueFull(64), "64"),
    (errors.UnknownTurn("turn-1"), "turn-1"),
    (errors.StaleWindow(), "changed"),
    (errors.ActorCrashed(), "failed"),
    (errors.CompactionPreempted(), "preempted"),
    (errors.SubscriptionOverrun(), "larger buffer"),
    (errors.CorruptRecord("t-1", 7), "damaged at 7."),
    (errors.CorruptRecord("t-1", 7, "bad sum"), "damaged at 7: bad sum."),
    (errors.ThreadExists("t-1"), "t-1"),
    (errors.StoreInUse("pid 7"), "pid 7"),
]


@pytest.mark.parametrize(("error", "words"), EXAMPLES)
def test_a_message_is_a_sentence_that_names_what_it_is_about(error: errors.RoderTrioError, words: str) -> None:
    assert words in str(error)
    assert str(error).endswith(".")


def test_a_missing_thread_is_a_refusal_and_an_error_of_the_store() -> None:
    assert issubclass(errors.ThreadNotFound, errors.CommandRefused)
    assert issubclass(errors.ThreadNotFound, errors.StorageError)


def test_every_error_is_in_the_tree_and_in_its_drawing() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert all(issubclass(one, errors.RoderTrioError) for one in classes)
    assert [one.__name__ for one in classes if one.__name__ not in (errors.__doc__ or "")] == []


RETRYABLE = {"transport", "stream_interrupted", "rate_limited", "server_overloaded", "timeout"}


@pytest.mark.parametrize("kind", ProviderFailureKind)
def test_the_servers_word_decides_over_a_retry_and_else_the_kind(kind: ProviderFailureKind) -> None:
    assert ProviderFailure(kind, "m").retryable == (kind.value in RETRYABLE)
    assert ProviderFailure(kind, "m", should_retry=True).retryable
    assert not ProviderFailure(kind, "m", should_retry=False).retryable
