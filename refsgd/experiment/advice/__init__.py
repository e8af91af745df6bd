"""Choosing a strategy for a cluster: candidates, their predicted metrics, a recommendation."""
