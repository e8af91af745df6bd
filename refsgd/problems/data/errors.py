"""The one error of this package."""


class DataError(Exception):
    """A data set that is missing or not what it should be: one line with what was found and what was
    expected."""
