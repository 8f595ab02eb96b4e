"""Checks for authors of stores and engines."""
