"""Runtimes of the same programs: virtual time, every schedule, and real processes."""
