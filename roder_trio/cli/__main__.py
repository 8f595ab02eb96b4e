"""Runs the command line as `python -m roder_trio.cli`."""

from roder_trio.cli.main import main

main()
