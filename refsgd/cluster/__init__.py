"""The described cluster: distributions of compute times, the machine, its cores and links."""
