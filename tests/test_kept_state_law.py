"""A state that was kept as text and continued decides as the whole log does, wherever it was kept."""

from unittest import mock

from hypothesis import settings

from roder_trio.codec import state as codec
from roder_trio.schema.event import EventEnvelope, UsageRecorded
from tests.kept_states import continued, fingerprint, whole
from tests.test_thread_law import FoldIsLive


class KeptIsWhole(FoldIsLive):
    """The same random threads; at the end their logs are cut at every position."""

    def teardown(self) -> None:
        records = self.desk.records
        expected = fingerprint(whole(records))
        for newest in (1, codec.NEWEST_READINGS):
            with mock.patch.object(codec, "NEWEST_READINGS", newest):
                for cut in range(len(records) + 1):
                    self.check(expected, cut, newest)
                    self.check(expected, cut, (cut + len(records)) // 2, len(records), newest)

    def check(self, expected, *cuts_and_newest):
        *cuts, newest = cuts_and_newest
        records = self.desk.records
        hydration = continued(records, *cuts)
        if hydration is None:
            assert newest == 1
            assert any(self.repeats(cut) for cut in cuts)
        else:
            assert fingerprint(hydration) == expected

    def repeats(self, cut: int) -> bool:
        """Whether an attempt has a record before the cut and another after it."""
        records = self.desk.records
        before, after = [
            {r.event.attempt_id for r in part if isinstance(r, EventEnvelope) and isinstance(r.event, UsageRecorded)}
            for part in (records[:cut], records[cut:])
        ]
        return bool(before & after)


TestKeptIsWhole = KeptIsWhole.TestCase
TestKeptIsWhole.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
