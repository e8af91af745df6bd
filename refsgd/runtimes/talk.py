"""What launchers on several computers say to each other: JSON and raw arrays over one connection; nothing is pickled."""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from refsgd.runtimes.board import wait_for
from refsgd.runtimes.simulator import RunFailed
from refsgd.runtimes.wire import DTYPES

LONGEST = 1 << 32  # bytes of one thing said: a whole report
LENGTHS = struct.Struct("<QQ")
PATIENCE = 30.0  # seconds in which an answer must come


def _plain(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A value as JSON, with arrays by number and tuples marked."""
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, Mapping):
        return {"map": [[_plain(k, arrays), _plain(v, arrays)] for k, v in value.items()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _plain(getattr(value, "x", None), arrays)  # a replica stands for its parameters


def _value(plain: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    if isinstance(plain, list):
        return [_value(item, arrays) for item in plain]
    if isinstance(plain, dict):
        ((kind, inside),) = plain.items()
        if kind == "array":
            return arrays[inside]
        if kind == "tuple":
            return tuple(_value(item, arrays) for item in inside)
        return {_value(k, arrays): _value(v, arrays) for k, v in inside}
    return plain


class Line:
    """The connection to another launcher; `say` and `hear` never wait, `wait` and `ask` do.

    Parameters
    ----------
    s : socket
        Connected, and proved to lead to a launcher of this run.
    who : str
        The other side, for errors.
    """

    def __init__(self, s: socket.socket, who: str) -> None:
        s.setblocking(False)
        with suppress(OSError):  # an answer need not wait for company; only TCP knows of that
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self.who, self.heard = s, who, time.monotonic()
        self._in, self._out, self._gone = bytearray(), bytearray(), False

    def say(self, **what: Any) -> None:
        """Send something."""
        arrays: list[np.ndarray[Any, Any]] = []
        plain = _plain(what, arrays)
        head = json.dumps([plain, [[a.dtype.str, list(a.shape)] for a in arrays]]).encode()
        raw = b"".join(a.tobytes() for a in arrays)
        self._out += LENGTHS.pack(len(head), len(raw)) + head + raw
        self.flush()

    def flush(self) -> None:
        """Write what goes."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise RunFailed(f"lost the connection to {self.who}: {error.strerror}") from None

    def hear(self, silence: float = math.inf) -> list[dict[str, Any]]:
        """Everything that has come.

        Parameters
        ----------
        silence : float
            For how many seconds the other side may have said nothing.

        Returns
        -------
        list of dict
            What `say` was given there.

        Raises
        ------
        RunFailed
            If the other side is gone, or silent for longer.
        """
        self.flush()
        try:
            while True:
                more = self._socket.recv(1 << 16)
                if not more:
                    self._gone = True
                    break
                self._in += more
                self.heard = time.monotonic()
        except BlockingIOError:
            pass
        except OSError as error:
            raise RunFailed(f"lost the connection to {self.who}: {error.strerror}") from None
        if time.monotonic() - self.heard > silence:
            raise RunFailed(f"{self.who} has said nothing for {silence:g} s")
        found = []
        while (one := self._next()) is not None:
            found.append(one)
        if self._gone and not found:
            raise RunFailed(f"lost the connection to {self.who}: its launcher has ended")
        return found

    def _next(self) -> dict[str, Any] | None:
        if len(self._in) < LENGTHS.size:
            return None
        head, raw = LENGTHS.unpack_from(self._in)
        if head + raw > LONGEST:
            raise RunFailed(f"{self.who} announces {head + raw} bytes; expected at most {LONGEST}")
        end = LENGTHS.size + head + raw
        if len(self._in) < end:
            return None
        plain, kinds = json.loads(self._in[LENGTHS.size : LENGTHS.size + head])
        at, arrays = LENGTHS.size + head, []
        data = bytes(self._in[:end])
        for code, shape in kinds:
            dtype = np.dtype(code)
            if dtype not in DTYPES:
                raise RunFailed(f"{self.who} sends an array of {dtype}")
            arrays.append(np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape))
            at += arrays[-1].nbytes
        del self._in[:end]
        said = _value(plain, arrays)
        return said if isinstance(said, dict) else {}

    def wait(self, seconds: float) -> None:
        """Sleep until the other side says something.

        Parameters
        ----------
        seconds : float
            Longest sleep.
        """
        wait_for([self._socket.fileno()], max(0.0, min(seconds, 0.002) if self._out else seconds))

    def ask(self, key: str, seconds: float = PATIENCE) -> Any:
        """Wait until the other side has said `key`; what it said.

        Parameters
        ----------
        key : str
        seconds : float
            Longest wait.

        Returns
        -------
        object
            What `say` was given under this key there: JSON values, tuples and arrays.

        Raises
        ------
        RunFailed
            If the other side has failed, is gone, or does not say it in time.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for said in self.hear():
                if "failed" in said:
                    raise RunFailed(f"{said['failed']} (on {self.who})")
                if key in said:
                    return said[key]
            self.wait(min(0.05, end - time.monotonic()))
        raise RunFailed(f"{self.who} did not say {key} within {seconds:g} s")

    def close(self) -> None:
        """Write what is left, let the other side read it, and hang up; all within a second."""
        end = time.monotonic() + 1.0
        with suppress(RunFailed, OSError):
            while self._out and time.monotonic() < end:
                self.flush()
                time.sleep(0.002)
            # Closing with unread bytes would take back what has been written: read to the end first.
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(0.05)
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    if not self._socket.recv(1 << 16):
                        break
        self._socket.close()
