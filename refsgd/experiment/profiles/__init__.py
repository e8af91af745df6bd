"""Profiles of jobs elsewhere: the times of ranks and steps in Chrome traces, and what would change them."""
