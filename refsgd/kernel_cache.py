"""Where compiled kernels are kept between runs: numba refuses to compile what it is to keep and has no place for."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import warnings
from pathlib import Path

FOLDERS = ("nn", "runtimes")  # of the package, which hold kernels


def can_write(place: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself where there is none."""
    while not os.path.exists(place) and place != place.parent:  # Path.exists raises where a folder above may not be read
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def places() -> list[tuple[Path, ...]]:
    """Where numba looks for a place, in its order: one folder each time, or those beside the sources; none in a home that there is not."""
    given, here = os.environ.get("NUMBA_CACHE_DIR"), Path(__file__).parent
    mac = sys.platform == "darwin"
    user = Path(os.path.expanduser("~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "numba")
    beside = tuple(here / folder / "__pycache__" for folder in FOLDERS)
    return [*([(Path(given),)] if given else []), beside, *([(user,)] if user.is_absolute() else [])]


def found() -> Path | None:
    """The first place that can be written to."""
    return next((place[0] for place in places() if all(map(can_write, place))), None)


@functools.cache
def kept() -> bool:
    """Whether compiled kernels are kept; asked before the first is made.  Where there is no place, in a temporary folder of this user's."""
    if found() is not None:
        return True
    tried = ", ".join(str(place[0]) for place in places())
    folder = _temporary()
    are = f"kept in {folder}" if folder else "not kept, and compiled again by each process that starts"
    warnings.warn(f"compiled kernels are {are}, since nothing can be written to {tried}; expected NUMBA_CACHE_DIR to name a folder that you may write to",
                  RuntimeWarning, stacklevel=2)
    if folder:
        from numba import config

        os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # numba has read its variables
    return folder is not None


def _temporary() -> Path | None:
    """A folder of this user's that nobody else can write to: what others can write must not be run."""
    try:
        folder = Path(tempfile.gettempdir()) / f"refsgd-kernels-{os.getuid() if hasattr(os, 'getuid') else 'mine'}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
            folder = Path(tempfile.mkdtemp(prefix="refsgd-kernels-"))
    except OSError:
        return None
    return folder
