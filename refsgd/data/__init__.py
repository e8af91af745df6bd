"""Real images, and the order in which workers see them."""
from refsgd.data.errors import DataError
from refsgd.data.sets import NAMES, Dataset, load
from refsgd.data.shards import Shards

__all__ = ["NAMES", "DataError", "Dataset", "Shards", "load"]
