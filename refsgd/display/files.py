"""Output files, which are UTF-8 and never incomplete."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replaceable(path: str | Path) -> bool:
    """Whether a new file may replace a path: not a device, a pipe or /dev/stdout, which may be a file."""
    stream = Path(path).is_relative_to("/dev") and not Path(path).is_relative_to("/dev/shm")
    return not stream and (Path(path).is_file() or not Path(path).exists())


def save(path: str | Path, content: str | bytes | Figure) -> None:
    """Write a text, bytes or a figure; the error names the file and says what to do.

    A temporary file replaces the output file once it is complete, so that none is left incomplete.  A link is
    kept, and its target replaced; to a device or a pipe the bytes are written.
    """
    try:
        target, beside = Path(os.path.realpath(path)), replaceable(path)
        with tempfile.TemporaryDirectory(dir=target.parent if beside else None, prefix=".refsgd-") as folder:
            temporary = Path(folder) / f"output{Path(path).suffix}"
            if isinstance(content, str):  # a file name in it need not be UTF-8
                temporary.write_text(content, encoding="utf-8", errors="replace")
            elif isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                from refsgd.display.plots.figures import save as drawn

                drawn(content, temporary)
            if beside:
                temporary.replace(target)
            else:
                with open(path, "wb") as stream:
                    stream.write(temporary.read_bytes())
    except OSError as error:
        wanted = "more free space" if error.errno in FULL else "a file that can be written"
        raise RuntimeError(f"{path} could not be written ({error.strerror or error}); expected {wanted}"
                           ) from None
