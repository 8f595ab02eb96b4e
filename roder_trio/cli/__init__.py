"""The command line, for which the extra `cli` is installed; the library never needs it."""
