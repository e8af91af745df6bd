"""Lateness of real processes relative to the machine to which they are paced."""

from __future__ import annotations


class Lateness:
    """Lateness relative to nominal time on one node."""

    def __init__(self) -> None:
        self.events = self.slips = self.computes = 0
        self.total = self.worst = self.slipped = self.overrun = self.drawn = self.computing = 0.0

    def seen(self, late: float) -> None:
        """Count one event that was performed `late` seconds after its due time."""
        self.events += 1
        self.total += late
        self.worst = max(self.worst, late)

    def computed(self, took: float) -> None:
        """Count a Compute with its real duration."""
        self.computes += 1
        self.computing += took

    def slip(self, late: float) -> None:
        """Count a move of nominal time to real time."""
        self.slips += 1
        self.slipped += late

    def figures(self) -> dict[str, float]:
        """Seconds and counts."""
        return {
            "late_mean": self.total / max(1, self.events), "late_worst": self.worst, "events": self.events,
            "computes": self.computes, "computing": self.computing, "drawn": self.drawn,
            "overrun": self.overrun,
            "overrun_ratio": self.overrun / self.drawn if self.drawn else 0.0,
            "slips": self.slips, "slipped": self.slipped,
        }
