"""Predictions by algorithm, one file per family."""
