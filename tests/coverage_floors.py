"""A pytest plugin: a run under `--cov` fails if a part of the package is covered less than its floor.

The pure rooms and the owners of state are covered whole, branches included; the rest nearly so. What the examples of a
property test happen to reach doesn't count, nor what a test reaches that is marked `unmeasured`, a sweep that goes ways
of others at each of their steps: they run without the tracer, in a third of the time.
"""

import importlib
import io
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import coverage
import pytest
from coverage.exceptions import NoDataError

import roder_trio

WHOLE = ("roder_trio/logic/*", "roder_trio/actors/*")
FLOORS = {
    "logic": (("roder_trio/logic/*",), (), 100.0),
    "actors": (("roder_trio/actors/*",), (), 100.0),
    "the rest": (("roder_trio/*",), WHOLE, 95.0),
}
UNMEASURED = ("unmeasured", "hypothesis")
"""The latter is hypothesis's own mark of its tests."""


class CoverageFloors:
    """Compares the coverage of a finished run with the floors."""

    def __init__(self) -> None:
        self.shortfalls: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Measure each part once the run's data is written."""
        measured = coverage.Coverage()
        measured.load()
        for name, (include, omit, floor) in FLOORS.items():
            report = io.StringIO()
            try:
                total = measured.report(
                    include=include, omit=omit, file=report, skip_covered=True, show_missing=True, precision=1
                )
            except NoDataError:
                continue
            if total < floor:
                self.shortfalls.append(
                    f"{name}: {total:.1f} %, but at least {floor:.0f} % is asked\n{report.getvalue()}"
                )
        if self.shortfalls and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what is covered too little, before pytest's own closing line."""
        for shortfall in self.shortfalls:
            terminalreporter.section("coverage below its floor", red=True)
            terminalreporter.write_line(shortfall)


@contextmanager
def untraced() -> Iterator[None]:
    """Take the tracer off this thread for a while; other threads keep theirs."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Measure how the package is imported, but not how pytest rewrites the tests."""
    if sys.gettrace() is not None:
        for module in pkgutil.walk_packages(roder_trio.__path__, "roder_trio."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    with untraced():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Run what isn't measured without the tracer, its fixtures included."""
    with untraced() if any(item.get_closest_marker(name) for name in UNMEASURED) else nullcontext():
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a run that measures coverage, and there only in the process that sees all of it."""
    config.addinivalue_line("markers", "unmeasured: runs without measuring coverage, which other tests give.")
    measures = config.pluginmanager.hasplugin("_cov") and config.getoption("cov_source", None)
    if measures and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CoverageFloors(), "coverage_floors")
