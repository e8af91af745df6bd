"""What carries messages between processes: rings in shared memory, sockets, and their frames."""
