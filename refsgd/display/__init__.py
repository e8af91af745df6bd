"""Output: plots, tables, the step player."""
