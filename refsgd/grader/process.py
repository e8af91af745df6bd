"""The process of a submission, with limits, and the lines of JSON that go to it and come from it.

Whatever it does, a line comes within the limits of time and size, or `Gone` says why none does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from refsgd.experiment.arguments import Usage
from refsgd.grader import plain
from refsgd.runtimes.fork import NO_FORK, can_fork, own_children

PATIENCE = 20  #: seconds on the clock for each second of processor time: a busy machine shares its processors
STILL = 3.0  #: least seconds without any progress after which it is ended
LINE = 16 << 20  #: most bytes of a report
ALL = 512 << 20  #: most bytes of all reports


class Gone(BaseException):
    """The submission cannot be asked any more: no check continues."""


class Process:
    """A process for a submission, with a limit of `seconds` of processor time; on the clock `PATIENCE` times
    as much, and `STILL` or as much without any progress."""

    def __init__(self, seconds: float) -> None:
        if not can_fork():
            raise Usage(f"a grade needs a process for the submission, and {NO_FORK}; use WSL, or check it "
                        "without --as")
        self.seconds, self._received = seconds, 0
        self._until = time.monotonic() + PATIENCE * seconds
        self._buffer = b""
        self._life = contextlib.ExitStack()
        self._life.enter_context(own_children())
        self._output = self._life.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - until `close`
        theirs, self._out = os.pipe()
        self._in, replies = os.pipe()
        os.set_blocking(self._out, False)
        command = [*apart(), sys.executable, "-m", "refsgd.grader.executor", str(theirs), str(replies)]
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                start_new_session=True, pass_fds=(theirs, replies),
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                                  "PYTHONIOENCODING": "utf-8:replace"})
        finally:
            os.close(theirs)
            os.close(replies)

    def close(self) -> None:
        """End the process, and all that it has started."""
        os.close(self._out)
        os.close(self._in)
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        self._life.close()

    @property
    def printed(self) -> str:
        """The beginning of what the submission has printed."""
        return os.pread(self._output.fileno(), 4000, 0).decode(errors="replace")

    def write(self, value: Any) -> None:
        """Write one line."""
        data = memoryview(plain.dumps(value))
        while data:
            try:
                data = data[os.write(self._out, data):]
            except BlockingIOError:
                self._wait([], [self._out])
            except OSError:
                raise self._ended() from None

    def read(self) -> dict[str, Any]:
        """One line of the submission's report."""
        while (end := self._buffer.find(b"\n")) < 0:
            self._wait([self._in], [])
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise self._ended()
            self._received += len(piece)
            self._buffer += piece
            if len(self._buffer) > LINE or self._received > ALL:
                raise Gone(f"reports more than {LINE >> 20} MiB at once or {ALL >> 20} MiB in all; expected "
                           "small messages")
        line, self._buffer = self._buffer[:end], self._buffer[end + 1:]
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.garbage(error) from None
        if not isinstance(found, dict):
            raise self.garbage(TypeError(f"a report of type {type(found).__name__}"))
        return found

    def _wait(self, reads: list[int], writes: list[int]) -> None:
        """Wait until the process can be read from or written to; not longer than its limits."""
        since, used = time.monotonic(), None
        while not any(select.select(reads, writes, [], 0.2)[:2]):
            now, spent = time.monotonic(), processor_time(self._child.pid)
            if used is None or spent is None or spent - used > 0.05 * (now - since):
                since, used = now, spent  # it computes
            elif now - since > (still := max(self.seconds, STILL)):
                raise Gone(f"did nothing for {still:g} s; expected a run that ends: does it sleep or wait?")
            if now > self._until:
                break
        if time.monotonic() > self._until:
            raise Gone(f"was still running after {PATIENCE * self.seconds:g} s; expected a run that ends")

    def _ended(self) -> Gone:
        """What ended the process."""
        try:
            code = self._child.wait(2)
        except subprocess.TimeoutExpired:
            return Gone("closed its connection to the grader; expected a run that ends")
        last = (self.printed.strip().splitlines()[-1:] or [""])[0]
        if code in (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL):
            return Gone(f"was still running after {self.seconds:g} s of processor time; a loop that never "
                        "ends, or a loop without a yield?")
        if code < 0:
            return Gone(f"ended by signal {-code}; expected a run that ends: {last}")
        return Gone(f"ended the process with exit code {code}; expected no exit" + (last and f": {last}"))

    def garbage(self, error: BaseException) -> Gone:
        """The end of a process whose report cannot be read."""
        return Gone(f"its report cannot be read ({type(error).__name__}: {str(error)[:60]}); expected "
                    "programs that only yield effects")


@cache
def apart() -> tuple[str, ...]:
    """The command that gives a process its own processes and network, if the system allows it: then nothing
    that it starts outlives it."""
    command = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--net", "sh", "-c",
               '"$@"; exit $?', "sh")  # the shell says which signal has ended it
    if shutil.which("unshare") is None:
        return ()
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        if subprocess.run([*command, "true"], capture_output=True, timeout=10, check=False).returncode == 0:
            return command
    return ()


def processor_time(pid: int) -> float | None:
    """Seconds that a process and its children have computed; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    except OSError:
        return None
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_time(int(child)) or 0.0 for child in children)
