"""Algorithms that average replicas periodically."""
