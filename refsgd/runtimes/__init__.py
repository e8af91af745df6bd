"""Worlds in which the same programs run: virtual time, every schedule, and real processes."""
