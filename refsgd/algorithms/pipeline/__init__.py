"""Pipelines: a net in stages on several nodes."""
