"""Transports of messages between processes: rings in shared memory, sockets, MPI, torch, and their frames."""
