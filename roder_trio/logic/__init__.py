"""Decisions as pure functions: no trio, httpx, clock, randomness or file in here."""
