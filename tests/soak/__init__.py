"""The soak: stores whose processes are killed at every append and at random, and what must hold after each death."""
