"""What several test files need: where the recorded provider streams lie."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("RODER_TRIO_SHARED") or ROOT.parent / "shared")


def shared(path: str) -> Path:
    """The file or folder `path` beside the repository, or in `$RODER_TRIO_SHARED`; skips the test if it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"the recorded data {path!r} is not there; set RODER_TRIO_SHARED to the folder that has it")
    return found
