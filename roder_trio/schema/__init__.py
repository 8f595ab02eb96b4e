"""Frozen data, with no behaviour beyond arithmetic on itself."""
