"""This computer: its speed, its limits, and whether it can make real runs."""
