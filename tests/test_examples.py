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
    "coding_agent.py": [
        "grep {",
        "read_file {",
        "edit {",
        "write_file {",
        "It has a test now.",
        "-    return sum(numbers) / len(number)\n",
        "+    return sum(numbers) / len(numbers)\n",
        "+++ after/tests/test_mean.py",
        "+    assert mean([1, 2, 3]) == 2",
    ],
    "cluster.py": [
        "A owns the thread: A answers.",
        "B is refused: the thread is owned elsewhere",
        "A has left",
        "B owns the thread now: B answers.",
        "B is in the middle of a turn",
        "B was killed",
        "A waits until the lease of the dead ends",
        "A owns the thread again: A answers again.",
        "completed 14\n  completed 14\n  interrupted 0\n  completed 14\n",
    ],
    "long_thread.py": [
        "2000 turns, 4",
        "from UserMessage(text='What happened on day 1?'",
        " summaries, the last of which left ",
        "the window never held more than 4",
        "What happened on day 2000?",
    ],
    "approval.py": [
        "the model hears: sent 19 characters to ada@example.org",
        "the model hears: approval denied",
        "Eve was not allowed.",
    ],
    "goal.py": [
        "a turn begins by itself\n  the host says: active, 0 of 50000 tokens used\n  it used 40 tokens\n",
        "the model says: complete, 120 of 50000 tokens used\n  it used 80 tokens\n",
        "Many tasks set out; \none door, and it stays open \ntill the last comes home.  That is the haiku.\n",
    ],
    "structured_output.py": [
        "Receipt(shop='Corner', currency='EUR', items=[Item(name='bread', cents=320)])",
        "320 cents in EUR; TokenUsage(prompt_tokens=120,",
        "Read this receipt.",
        "- $.currency: enum:",
        "- $.items[0].cents: type:",
    ],
    "side_by_side.py": [
        ": We ",
        "optimist (completed): We would swim before work.",
        "sceptic (completed): Sand gets into every keyboard.",
        "clerk (completed): Twice the rent, half the desks.",
        "3 agents, 78 tokens",
    ],
}
NEEDS_DATABASE = {"cluster.py"}
SHORT = ["coding_agent.py", "approval.py", "goal.py", "structured_output.py", "side_by_side.py"]


def run_example(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, run as a program of its own, with warnings as errors."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def test_every_example_has_its_expectations() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_and_shows_what_it_promises(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    arguments = [request.getfixturevalue("empty_database")] if name in NEEDS_DATABASE else []
    printed = run_example(name, tmp_path, *arguments)
    rest = printed
    for words in EXPECTED[name]:
        assert words in rest, printed
        rest = rest.partition(words)[2]


def test_agents_side_by_side_have_all_begun_before_one_ends(tmp_path: Path) -> None:
    printed = run_example("side_by_side.py", tmp_path)
    firsts, lasts = (": We ", ": Sand ", ": Twice "), (": work. ", ": keyboard. ", ": desks. ")
    assert max(map(printed.index, firsts)) < min(map(printed.index, lasts))


def test_consent_is_asked_for_each_call(tmp_path: Path) -> None:
    printed = run_example("approval.py", tmp_path)
    assert re.search(r"ada@example\.org.*: approved\n", printed)
    assert re.search(r"eve@elsewhere\.example.*: denied\n", printed)


@pytest.mark.parametrize("name", SHORT)
def test_an_example_is_short_and_says_how_to_use_a_real_model(name: str) -> None:
    text = (EXAMPLES / name).read_text("utf-8")
    assert len(text.splitlines()) < 70
    assert f"OPENAI_API_KEY=... python {name} openai" in text


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert (EXAMPLES / "quickstart.py").read_text("utf-8") in blocks


def test_the_readme_links_only_to_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
