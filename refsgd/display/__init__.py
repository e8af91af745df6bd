"""What a reader looks at: plots, tables, the step player."""
