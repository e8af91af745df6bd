"""Predictions of the catalogue, one file per family."""
