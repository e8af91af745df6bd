"""Be the scheduler: the state graph of a small case as one self-contained HTML page.

The reader picks what happens next among all actions that the explorer allows, takes moves back, and tries to
reach goals.  The page needs no network and no kernel; its style, listing and sentences are the step player's.
"""

from refsgd.display.scheduler.graph import MOST, Graph, TooLarge, scheduler_html

__all__ = ["MOST", "Graph", "TooLarge", "scheduler_html"]
