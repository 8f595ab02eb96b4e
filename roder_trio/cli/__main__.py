"""Starts the command line, as `roder-trio` or `python -m roder_trio.cli`; without its extra it says what to install."""

import sys

_EXTRA = frozenset({"cyclopts", "platformdirs", "rich"})


def main() -> None:
    """Run the program and exit with its code."""
    try:
        from roder_trio.cli.main import main as run  # noqa: PLC0415  # what it needs may not be there
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"roder-trio: the command line needs {error.name}; install roder_trio with its extra: roder_trio[cli]")
    run()


if __name__ == "__main__":
    main()
