"""Carrying out a run: in a runtime, again after a death, from a checkpoint."""
