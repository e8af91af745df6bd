"""Real images, and the order in which workers see them."""
from refsgd.problems.data.formats import DataError
from refsgd.problems.data.published import Status, fetch, status
from refsgd.problems.data.sets import NAMES, Dataset, load, synthetic
from refsgd.problems.data.shards import Shards, apportion

__all__ = ["NAMES", "DataError", "Dataset", "Shards", "Status", "apportion", "fetch", "load", "status",
           "synthetic"]
