"""The algorithms of the catalogue by what they declare, for tests of all of them: a new one needs no table."""

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of

FACTS = {name: facts_of(function) for name, function in CATALOGUE.items()}


def having(holds):
    """The names of the algorithms whose facts fulfil a condition."""
    return [name for name, facts in FACTS.items() if holds(facts)]


#: no worker computes `problem.gradient` under its own rank, or none has to
DEALT = having(lambda facts: facts.dealt)
NOT_BY_RANK = {*having(lambda facts: facts.staged), *DEALT}


def taking(option):
    """The names of the algorithms that take an option of the exchange, or "overlap both"."""
    return having(lambda facts: option.split()[0] in facts.takes and option not in facts.because)
