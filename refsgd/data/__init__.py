"""Real images, and the order in which workers see them."""
from refsgd.data.augment import augmented
from refsgd.data.errors import DataError
from refsgd.data.published import Status, fetch, status
from refsgd.data.sets import NAMES, Dataset, load, synthetic
from refsgd.data.shards import Shards

__all__ = ["NAMES", "DataError", "Dataset", "Shards", "Status", "augmented", "fetch", "load", "status", "synthetic"]
