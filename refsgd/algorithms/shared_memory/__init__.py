"""Algorithms on shared memory."""
