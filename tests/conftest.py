"""How tests run: hypothesis without deadlines or files in the repository, garbage collected while its test is known.

A slow machine fails no property test, and chance none: each run tries the same examples, unless `RODER_TRIO_RANDOM` is
set, for who looks for new ones.
"""

import gc
import os
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis.configuration import set_hypothesis_home_dir

pytest_plugins = ["tests.coverage_floors", "tests.postgres_server"]

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "roder-trio-hypothesis")
hypothesis.settings.register_profile(
    "roder_trio",
    deadline=None,
    database=None,
    derandomize="RODER_TRIO_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
hypothesis.settings.load_profile("roder_trio")


def pytest_collection_finish() -> None:
    """Leave all that the collection made out of later garbage collections, which so take a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect what a trio test dropped, so that an unclosed stream or socket fails the test that left it."""
    if item.get_closest_marker("trio") is not None:
        gc.collect()
