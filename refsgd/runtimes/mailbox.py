"""Selective receive: the one inbox that every runtime uses."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, NamedTuple

_tags: dict[type, int] = {}


def tag_of(kind: type) -> int:
    """A message class as a number: the CRC-32 of its qualified name and fields.

    The receiver builds the class that its own `Recv` names, so nothing is ever looked up by a name from the wire.
    """
    tag = _tags.get(kind)
    if tag is None:
        names = ",".join(getattr(kind, "_fields", ()))
        tag = _tags[kind] = zlib.crc32(f"{kind.__qualname__}({names})".encode())
    return tag


class Letter(NamedTuple):
    """A message that has arrived.

    `body` is the message itself, or the plain sequence of its fields when it came over a wire; `number`
    counts the messages of the channel (src, receiver) from 0.
    """

    src: str
    tag: int
    body: Any
    number: int
    arrival: float
    nbytes: int


class Mailbox:
    """Letters in order of arrival; `take` removes the earliest that matches."""

    def __init__(self) -> None:
        self.letters: deque[Letter] = deque()

    def put(self, letter: Letter) -> None:
        """Add a letter behind those that have arrived."""
        self.letters.append(letter)

    def take(self, kinds: tuple[type, ...], src: str | None) -> tuple[Letter, Any] | None:
        """The earliest letter of one of these classes from `src` (None: anybody) and its body, or None."""
        letters = self.letters
        for i, letter in enumerate(letters):
            if src is not None and letter.src != src:
                continue
            tag, body = letter.tag, letter.body
            for kind in kinds:
                if type(body) is kind or tag == tag_of(kind):
                    if i:
                        del letters[i]
                    else:
                        letters.popleft()
                    return letter, body if type(body) is kind else kind._make(body)  # type: ignore[attr-defined]
        return None

    def has(self, kinds: tuple[type, ...], src: str | None) -> bool:
        """Whether `take` would find something."""
        return self.find(kinds, src) is not None

    def find(self, kinds: tuple[type, ...], src: str | None) -> Letter | None:
        """The letter that `take` would remove."""
        tags = {tag_of(kind) for kind in kinds}
        return next((letter for letter in self.letters if letter.tag in tags and src in (None, letter.src)), None)

    def __len__(self) -> int:
        return len(self.letters)
