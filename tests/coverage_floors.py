"""A pytest plugin: a run under `--cov` fails if a part of the package is covered less than its floor.

The pure rooms and the owners of state are covered whole, branches included; the rest nearly so.
"""

import io

import coverage
import pytest
from coverage.exceptions import NoDataError

WHOLE = ("roder_trio/logic/*", "roder_trio/actors/*")
FLOORS = {
    "logic": (("roder_trio/logic/*",), (), 100.0),
    "actors": (("roder_trio/actors/*",), (), 100.0),
    "the rest": (("roder_trio/*",), WHOLE, 95.0),
}


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


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a run that measures coverage, and there only in the process that sees all of it."""
    measures = config.pluginmanager.hasplugin("_cov") and config.getoption("cov_source", None)
    if measures and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CoverageFloors(), "coverage_floors")
