"""The tests, one file a module of the package."""
