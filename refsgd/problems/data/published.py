"""Download the published files and report which are available."""
from __future__ import annotations

import os
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from refsgd.problems.data.formats import RECORD_BYTES, DataError
from refsgd.problems.data.sets import NAMES, RECORDS, files, find, load, user_cache

# Where the files are published, and a mirror.
ADDRESSES = {
    "mnist": ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/",
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar10/",
    ),
}
# MD5, as the authors publish them.
CHECKSUMS = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "cifar10": {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
}
# This mirror packs the same six files into another archive, whose SHA-1 is in Apache MXNet's loader.
REPACKED = {ADDRESSES["cifar10"][1]: "sha1:fab780a1e191a7eda0f345501ccd62d20f7ed891"}


class Status(NamedTuple):
    """Availability of a data set: its folder (None if no file is found) and the numbers of found and expected
    files."""

    name: str
    folder: Path | None
    found: int
    expected: int

    @property
    def note(self) -> str:
        """What a partial set that can be used lacks."""
        try:
            return load(self.name).note if self.found < self.expected else ""
        except DataError:
            return ""


def status() -> list[Status]:
    """The status of every data set; those that need no files have 0 of 0."""
    rows = []
    for name in NAMES:
        place, found = find(name, files(name))
        rows.append(Status(name, place, len(found), len(files(name))))
    return rows


def fetch(name: str) -> Path:
    """Download a data set into the user's cache if it is missing, and verify every file."""
    if name not in ADDRESSES:
        raise DataError(f"data set is {name!r}, expected one that can be fetched: {', '.join(ADDRESSES)}")
    try:
        pooch = import_module("pooch")
    except ImportError:
        raise DataError("fetching needs pooch, which is not installed; pip install 'refsgd[data]'") from None
    cache = user_cache()
    if cache is None:
        raise DataError(f"{name}: this user has no home directory for it; expected XDG_CACHE_HOME to name a "
                        "folder that you may write to")
    folder = cache / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{name}: {folder} cannot be created ({error.strerror}); expected XDG_CACHE_HOME to "
                        "name a folder that you may write to") from None
    for file, checksum in CHECKSUMS[name].items():
        _download(pooch, name, file, checksum, folder)
    if name == "cifar10":
        _unpack(folder / next(iter(CHECKSUMS[name])), folder)
    return folder


def _download(pooch: Any, name: str, file: str, checksum: str, folder: Path) -> None:
    checksums = {address: REPACKED.get(address, f"md5:{checksum}") for address in ADDRESSES[name]}
    if (folder / file).is_file() and any(pooch.hashes.hash_matches(str(folder / file), known)
                                         for known in checksums.values()):
        return
    problems = []
    for address, known in checksums.items():
        try:
            pooch.retrieve(address + file, known, fname=file, path=folder)
            return
        except Exception as error:  # pooch passes on any error of its transport
            problems.append(
                f"{address}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    raise DataError(f"{name}: cannot fetch {file} ({'; '.join(problems)}), expected MD5 {checksum}")


def _unpack(archive: Path, folder: Path) -> None:
    """Extract only the published files from the archive, from any of its folders."""
    with tarfile.open(archive) as tar:
        members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
        for file in files("cifar10"):
            if file not in members:
                raise DataError(f"{archive}: no {file} in it, expected the binary version of CIFAR-10")
            if members[file].size > RECORDS * RECORD_BYTES:
                raise DataError(f"{archive}: {file} of {members[file].size} bytes, expected "
                                f"{RECORDS * RECORD_BYTES}")
            source = tar.extractfile(members[file])
            assert source is not None  # a regular file
            part = folder / f"{file}.part"
            part.write_bytes(source.read())
            os.replace(part, folder / file)
