"""Output for readers: plots, tables, the step player."""
