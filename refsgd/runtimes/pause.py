"""All processes of a run stop for a moment, so that what they hold together is one moment of the run.

Whoever wants a pause sets a word that all share.  Each process stops before its next happening, takes over what is still
on the wire to it until it has got as many messages of every channel as were sent, and then saves what its programs hold.
Nothing is in flight any more, so the parts of all processes fit together.  When all have saved, the clock of the run goes
on from where it stood: a pause costs no nominal time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from refsgd.runtimes.board import Bell, anonymous
from refsgd.runtimes.node import Driver
from refsgd.runtimes.simulator import RunFailed

WANTED, ENDED, SINCE, UNTIL = range(4)  # words: number of the pause that is wanted, that has ended; its borders [ns]
OF_RUN = 8
STOPPED, TOOK, SAVED = range(3)  # words of a host: number of the last pause of which it has done this
PATIENCE = 60.0  # seconds for all to stop
LOOK = 0.002  # seconds between two looks at the others


class Pause:
    """The meeting place of the processes of one machine, made before the fork.

    Parameters
    ----------
    nodes, hosts : sequences of str
        Of the run.
    save : callable
        ``save(driver)``: called in every process while all stand.
    gather : callable
        ``gather()``: called in the first host's process when all have saved.
    memory : callable
        Gives so many zeroed bytes that all processes share.
    """

    def __init__(self, nodes: Sequence[str], hosts: Sequence[str], save: Callable[[Driver], None], gather: Callable[[], None],
                 memory: Callable[[int], Any] = anonymous) -> None:
        self._hosts, self._save, self._gather = list(hosts), save, gather
        self._place = {node: k for k, node in enumerate(nodes)}
        size = OF_RUN + 3 * len(hosts) + len(nodes) ** 2
        self._words = memoryview(memory(8 * size))[: 8 * size].cast("Q")
        self._sent = OF_RUN + 3 * len(hosts)
        self.bells: Sequence[Bell] = ()  #: of all processes

    def want(self) -> None:
        """Ask for a pause; one that is asked for already is enough."""
        if self._words[WANTED] == self._words[ENDED]:
            self._words[SINCE] = time.monotonic_ns()
            self._words[WANTED] = self._words[ENDED] + 1
            for bell in self.bells:
                bell.ring()

    def __call__(self, driver: Driver) -> None:
        """In a driver's loop: take part in a pause that is wanted."""
        number = self._words[WANTED]
        if number != self._words[ENDED]:
            self._stand(driver, number)

    def _stand(self, driver: Driver, number: int) -> None:
        me = OF_RUN + 3 * self._hosts.index(driver.here)
        while driver.computing and not driver.ended:
            driver.listen(LOOK)
        for (src, to), count in driver.sent.items():
            self._words[self._sent + self._place[src] * len(self._place) + self._place[to]] = count
        self._words[me + STOPPED] = number
        if not self._await(driver, STOPPED, number):
            return
        while not self._complete(driver) and not driver.ended:
            driver.listen(LOOK)
        self._words[me + TOOK] = number
        if not self._await(driver, TOOK, number):
            return
        self._save(driver)
        self._words[me + SAVED] = number
        if driver.here == self._hosts[0]:
            if not self._await(driver, SAVED, number):
                return
            self._gather()
            self._words[UNTIL] = time.monotonic_ns()
            self._words[ENDED] = number
        while self._words[ENDED] != number:
            if driver.ended:
                return
            driver.listen(LOOK)
        driver.began += (self._words[UNTIL] - self._words[SINCE]) / 1e9

    def _await(self, driver: Driver, what: int, number: int) -> bool:
        """Until all hosts have done this; False if the run ends meanwhile."""
        end = time.monotonic() + PATIENCE
        while True:
            late = [h for k, h in enumerate(self._hosts) if self._words[OF_RUN + 3 * k + what] != number]
            if driver.ended or not late:
                return not driver.ended
            if time.monotonic() > end:
                raise RunFailed(f"no checkpoint: {', '.join(late[:4])} did not stop within {PATIENCE:g} s")
            driver.listen(LOOK)

    def _complete(self, driver: Driver) -> bool:
        """Whether this host has got all messages that were sent to it."""
        n = len(self._place)
        return all(driver.got(src, to) == self._words[self._sent + k * n + self._place[to]]
                   for src, k in self._place.items() if driver.host[src] != driver.here for to in driver.boxes)


