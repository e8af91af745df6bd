"""Algorithms whose peers talk to neighbours."""
