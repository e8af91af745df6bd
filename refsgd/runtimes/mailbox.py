"""Selective receive: the inbox of every runtime."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, NamedTuple

_tags: dict[type, int] = {}


def tag_of(kind: type) -> int:
    """A message class as a number: the CRC-32 of its qualified name and fields.

    The receiver builds the class named in its own `Recv`, so no name from the wire is ever looked up.
    """
    tag = _tags.get(kind)
    if tag is None:
        names = ",".join(getattr(kind, "_fields", ()))
        tag = _tags[kind] = zlib.crc32(f"{kind.__qualname__}({names})".encode())
    return tag


class Envelope(NamedTuple):
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
    """Envelopes in order of arrival; `take` removes the earliest that matches."""

    def __init__(self) -> None:
        self.envelopes: deque[Envelope] = deque()

    def take(self, kinds: tuple[type, ...], src: str | None) -> tuple[Envelope, Any] | None:
        """The earliest envelope of one of these classes from `src` (None: any node) and its body, or None."""
        envelopes = self.envelopes
        for i, envelope in enumerate(envelopes):
            if src is not None and envelope.src != src:
                continue
            tag, body = envelope.tag, envelope.body
            for kind in kinds:
                if type(body) is kind or tag == tag_of(kind):
                    if i:
                        del envelopes[i]
                    else:
                        envelopes.popleft()
                    fields = body if type(body) is kind else kind._make(body)  # type: ignore[attr-defined]
                    return envelope, fields
        return None

    def find(self, kinds: tuple[type, ...], src: str | None) -> Envelope | None:
        """The envelope that `take` would remove."""
        tags = {tag_of(kind) for kind in kinds}
        return next((e for e in self.envelopes if e.tag in tags and src in (None, e.src)), None)
