"""The one error of this package."""


class DataError(Exception):
    """A data set is missing or invalid: one line with the finding and the expectation."""
