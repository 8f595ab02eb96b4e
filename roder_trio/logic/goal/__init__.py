"""The pure half of goals: what becomes of them, what a model is told of them, and what it may do to them."""
