"""Where compiled kernels are kept between runs: numba refuses to compile what it is to keep and has no place for."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

FOLDERS = ("nn", "runtimes")  # of the package, which hold kernels


def can_write(place: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself where there is none.

    Parameters
    ----------
    place : Path

    Returns
    -------
    bool
    """
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def places() -> list[tuple[Path, ...]]:
    """Where numba looks for a place, in its order: one folder each time, or those beside the sources.

    Returns
    -------
    list of tuple of Path
    """
    given, here = os.environ.get("NUMBA_CACHE_DIR"), Path(__file__).parent
    mac = sys.platform == "darwin"
    user = Path("~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "numba"
    return [*([(Path(given),)] if given else []), tuple(here / folder / "__pycache__" for folder in FOLDERS), (user,)]


def found() -> Path | None:
    """The first place that can be written to.

    Returns
    -------
    Path or None
    """
    return next((place[0] for place in places() if all(map(can_write, place))), None)


def provide() -> None:
    """Choose a temporary folder of this user's where there is no place; called before numba is loaded.

    Warns
    -----
    RuntimeWarning
        Where it is, and how to choose another.
    """
    if found() is not None:
        return
    folder = Path(tempfile.gettempdir()) / f"refsgd-kernels-{os.getuid() if hasattr(os, 'getuid') else 'mine'}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
            folder = Path(tempfile.mkdtemp(prefix="refsgd-kernels-"))  # what others can write must not be run
    except OSError as error:
        raise OSError(f"no place for compiled kernels: {folder} cannot be made ({error.strerror}); expected NUMBA_CACHE_DIR to name a folder "
                      "that you may write to") from None
    tried = ", ".join(str(place[0]) for place in places())
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    warnings.warn(f"compiled kernels are kept in {folder}, since nothing can be written to {tried}; expected NUMBA_CACHE_DIR to name a "
                  "folder that you may write to", RuntimeWarning, stacklevel=2)
