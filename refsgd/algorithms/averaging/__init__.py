"""Algorithms that average replicas now and then."""
