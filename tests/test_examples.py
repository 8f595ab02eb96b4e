"""Every example runs as it stands, and the README shows one of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

EXAMPLES = ROOT / "examples"
EXPECTED = {
    "quickstart.py": ["structured concurrency?", "completed TokenUsage(prompt_tokens="],
    "interrupt.py": ["One sheep. Two sheep.", "interrupted: TokenUsage(", "I had counted", "the thread: 53 tokens"],
    "steer.py": ["Es war einmal", "Once upon a time there was a nursery.", "completed"],
    "crash_and_resume.py": [
        "the child was killed: -9",
        "and the second half.",
        "interrupted",
        "total_tokens=14",
        "AssistantMessage(text='The first half, ', phase=None, interrupted=True)",
        "completed",
        "total_tokens=30",
    ],
}


def run_example(name: str, folder: Path) -> str:
    """What an example prints, run as a program of its own, with warnings as errors."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def test_every_example_has_its_expectations() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_and_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    printed = run_example(name, tmp_path)
    rest = printed
    for words in EXPECTED[name]:
        assert words in rest, printed
        rest = rest.partition(words)[2]


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert (EXAMPLES / "quickstart.py").read_text("utf-8") in blocks


def test_the_readme_links_only_to_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
