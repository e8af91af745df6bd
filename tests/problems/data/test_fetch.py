"""Fetching from a server of our own: what arrives, what is refused, what is said."""
import hashlib
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from refsgd.problems import data
from refsgd.problems.data import published, sets


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder served on loopback, and an empty cache."""
    monkeypatch.delenv("REFSGD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{httpd.server_port}/"
    monkeypatch.setattr(published, "ADDRESSES",
                        {"mnist": (address + "gone/", address), "cifar10": (address,)})
    yield folder
    httpd.shutdown()
    httpd.server_close()


def served(folder, name, contents, monkeypatch):
    """Serve some files and expect their checksums."""
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    sums = {file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
    monkeypatch.setitem(published.CHECKSUMS, name, sums)


def test_the_mirror_is_asked_when_the_first_address_fails(server, monkeypatch, tmp_path):
    pytest.importorskip("pooch")
    contents = {file: file.encode() for file in sets.files("mnist")}
    served(server, "mnist", contents, monkeypatch)
    folder = data.fetch("mnist")
    assert folder == tmp_path / "cache" / "refsgd" / "mnist"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == contents
    assert next(row for row in data.status() if row.name == "mnist") == ("mnist", folder, 4, 4)


def test_wrong_bytes_are_refused_in_one_line(server, monkeypatch, tmp_path):
    pytest.importorskip("pooch")
    served(server, "mnist", {"train-images-idx3-ubyte.gz": b"right"}, monkeypatch)
    (server / "train-images-idx3-ubyte.gz").write_bytes(b"wrong")
    with pytest.raises(data.DataError, match="cannot fetch train-images") as error:
        data.fetch("mnist")
    assert "\n" not in str(error.value) and "expected MD5" in str(error.value)
    assert not list((tmp_path / "cache").rglob("*.gz"))


def archive(folder, inside):
    """An archive of the published files of CIFAR-10, in a folder inside it, with things that are not
    wanted."""
    source = folder / "source"
    source.mkdir()
    for file in [*sets.files("cifar10"), "readme.html", "._test_batch.bin"]:
        (source / file).write_bytes(file.encode())
    with tarfile.open(folder / "made.tar.gz", "w:gz") as tar:
        tar.add(source, inside)
    return (folder / "made.tar.gz").read_bytes()


def test_an_archive_gives_its_published_files_and_no_others(server, monkeypatch, tmp_path):
    pytest.importorskip("pooch")
    served(server, "cifar10", {"cifar-10-binary.tar.gz": archive(tmp_path, "cifar-10-batches-bin")},
           monkeypatch)
    folder = data.fetch("cifar10")
    assert (folder / "test_batch.bin").read_bytes() == b"test_batch.bin"
    assert not (folder / "readme.html").exists()


def test_a_mirror_may_pack_the_same_files_in_its_own_way(server, monkeypatch, tmp_path):
    pytest.importorskip("pooch")
    packed = archive(tmp_path, ".")
    (server / "cifar-10-binary.tar.gz").write_bytes(packed)
    address = published.ADDRESSES["cifar10"][0]
    monkeypatch.setitem(published.ADDRESSES, "cifar10", (address + "gone/", address))
    with pytest.raises(data.DataError, match="cannot fetch cifar-10-binary"):
        # another archive than the published one, from an address that is not known to have its own
        data.fetch("cifar10")
    monkeypatch.setitem(published.REPACKED, address, f"sha1:{hashlib.sha1(packed).hexdigest()}")
    folder = data.fetch("cifar10")
    assert (folder / "test_batch.bin").read_bytes() == b"test_batch.bin"
    (server / "cifar-10-binary.tar.gz").unlink()
    assert data.fetch("cifar10") == folder  # what is here is not fetched again


def test_every_set_has_a_mirror():
    assert all(len(addresses) > 1 for addresses in published.ADDRESSES.values())


def test_what_cannot_be_fetched_is_said(monkeypatch):
    with pytest.raises(data.DataError,
                       match="expected one that can be fetched: mnist, fashion-mnist, cifar10"):
        data.fetch("digits")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(data.DataError, match="fetching needs pooch"):
        data.fetch("mnist")


def test_status_of_sets_without_files():
    rows = {row.name: row for row in data.status()}
    assert list(rows) == list(data.NAMES)
    assert rows["digits"] == ("digits", None, 0, 0)
