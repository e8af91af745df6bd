"""The version of the library: what files carry that it writes, and what hosts of one run must agree on."""

__version__ = "0.1.0"
