"""Compiled kernels: whether nets have them, and the folder in which numba keeps them between runs."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import warnings
from pathlib import Path


@functools.cache
def has_kernels() -> bool:
    """Whether nets use compiled kernels; warns once if they cannot."""
    try:
        from numba import config
    except ImportError as error:
        why, expected = f"numba cannot be imported ({error})", "`pip install numba`"
    else:
        if not config.DISABLE_JIT:
            return True
        why, expected = "NUMBA_DISABLE_JIT is set", "it to be 0 or absent"
    warnings.warn(f"{why}: nets are computed with numpy, many times slower; expected {expected}",
                  RuntimeWarning, stacklevel=3)
    return False


def can_write(place: Path) -> bool:
    """Whether files can be created in a folder, or the folder itself if it does not exist."""
    # Path.exists raises if a parent folder may not be read
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def places() -> list[Path]:
    """The folders that numba tries, in order; that of a user without a home directory is missing."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    mac = sys.platform == "darwin"
    user = Path(os.path.expanduser("~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME")
                                   or "~/.cache"), "numba")
    return [*([Path(given)] if given else []), Path(__file__).parent / "__pycache__",
            *([user] if user.is_absolute() else [])]


def found() -> Path | None:
    """The first writable folder."""
    return next(filter(can_write, places()), None)


@functools.cache
def kept() -> bool:
    """Whether compiled kernels are cached, if necessary in a temporary folder of this user.

    Call it before the first one is compiled: numba refuses to compile a kernel that it cannot cache.
    """
    if found() is not None:
        return True
    tried = ", ".join(map(str, places()))
    folder = _temporary()
    are = f"kept in {folder}" if folder else "not kept, and each process that starts compiles them again"
    warnings.warn(f"compiled kernels are {are}, since nothing can be written to {tried}; expected "
                  "NUMBA_CACHE_DIR to name a folder that you may write to", RuntimeWarning, stacklevel=2)
    if folder:
        from numba import config  # it has already read the environment

        os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = str(folder)
    return folder is not None


def _temporary() -> Path | None:
    """A folder that only this user can write to, because its code will be run."""
    try:
        user = os.getuid() if hasattr(os, "getuid") else "mine"
        folder = Path(tempfile.gettempdir()) / f"refsgd-kernels-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
            folder = Path(tempfile.mkdtemp(prefix="refsgd-kernels-"))
    except OSError:
        return None
    return folder
