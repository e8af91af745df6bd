"""Options that several algorithms share: which algorithm takes which one, and what its values mean."""
