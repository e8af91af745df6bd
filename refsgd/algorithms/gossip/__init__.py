"""Algorithms whose peers communicate with neighbours only."""
