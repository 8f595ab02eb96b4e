"""The pure half of tools: arguments, ids, order, limits and what the model gets to see."""
