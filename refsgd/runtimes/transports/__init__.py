"""Transports of messages between processes: rings in shared memory, sockets, MPI, and their frames."""
