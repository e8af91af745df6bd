"""Algorithms on allreduce."""
