"""An embeddable, actor-based runtime for LLM agents on trio."""
