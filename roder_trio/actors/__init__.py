"""Everything that owns state or opens a nursery."""
