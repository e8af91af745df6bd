"""The one error of this package."""


class DataError(Exception):
    """A data set is missing or invalid: one line with what was found and what was expected."""
