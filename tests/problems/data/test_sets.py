"""Data sets: what they hold, and one clear line when they do not."""
import gzip
import hashlib
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from refsgd.problems import data
from refsgd.problems.data import formats, sets


def idx(array, magic=None):
    header = [0x0800 + array.ndim if magic is None else magic, *array.shape]
    return np.array(header, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A made-up "mnist" of 5 + 3 images under REFSGD_DATA."""
    monkeypatch.setenv("REFSGD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "_IDX_COUNTS", {"train": 5, "t10k": 3})
    (tmp_path / "mnist").mkdir()
    for part, count in (("train", 5), ("t10k", 3)):
        for kind, array in (("images-idx3", np.full((count, 28, 28), 51)), ("labels-idx1", np.arange(count))):
            (tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path / "mnist"


def message(name="mnist"):
    with pytest.raises(data.DataError) as error:
        data.load(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_digits_are_split_once_and_for_all():
    digits = data.load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1) and digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.float32 and digits.train_labels.dtype == np.int64
    assert digits.train_images.mean() == pytest.approx(0, abs=1e-5)
    assert digits.train_images.std() == pytest.approx(1, abs=1e-5)
    assert digits.train_labels[:10].tolist() == data.load("digits").train_labels[:10].tolist()
    assert np.bincount(digits.test_labels, minlength=10).min() >= 20
    assert not any(array.flags.writeable for array in (digits.train_images, *digits.hold_back(0.1).validation))
    pixels = np.concatenate([digits.train_images, digits.test_images]).reshape(1797, 64)
    assert len(np.unique(pixels, axis=0)) == 1797  # nothing is in both parts


def test_digits_are_the_published_ones():
    """The file that scikit-learn distributes, byte for byte."""
    path = Path(data.__file__).with_name("digits.csv.gz")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == (
        "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_published_files(name):
    try:
        whole = data.load(name)
    except data.DataError as error:
        pytest.skip(str(error))
    assert whole.train_images.shape == (60_000, 28, 28, 1) and len(whole.test_labels) == 10_000
    assert whole.train_images.mean() == pytest.approx(0, abs=1e-3)
    assert whole.train_images.std() == pytest.approx(1, abs=1e-3)


def test_scaling_of_pixels(folder):
    assert data.load("mnist").train_images[0, 0, 0, 0] == pytest.approx((0.2 - 0.1307) / 0.3081)


def test_a_missing_set_says_where_it_was_looked_for_and_what_to_do(folder, monkeypatch):
    monkeypatch.setenv("REFSGD_DATA", "/nowhere")
    text = message()
    assert "/nowhere/mnist" in text and "cache/refsgd/mnist" in text and "set REFSGD_DATA" in text
    assert "train-images-idx3-ubyte.gz" in text


def test_the_cache_is_the_second_place(folder, monkeypatch):
    (folder.parent / "cache" / "refsgd").mkdir(parents=True)
    folder.rename(folder.parent / "cache" / "refsgd" / "mnist")
    assert len(data.load("mnist").train_images) == 5


def test_a_missing_file_is_named(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "lacks t10k-labels-idx1-ubyte.gz" in message()


def test_a_file_cut_short_is_named(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert message().startswith(f"{path}: ends too early")
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    assert message() == f"{path}: 3919 bytes after the header, expected 3920 (5 x 28 x 28)"
    path.write_bytes(gzip.compress(b"\0\0\b"))
    assert message() == f"{path}: 3 bytes, expected a header of 16"
    path.write_bytes(b"not compressed")
    assert str(path) in message() and "gzip" in message()


def test_wrong_contents_are_named(folder):
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.arange(5), magic=2051)))
    assert message() == f"{path}: magic number 2051, expected 2049"
    path.write_bytes(gzip.compress(idx(np.arange(4))))
    assert message() == f"{path}: array of shape (4,), expected (5,)"
    path.write_bytes(gzip.compress(idx(np.array([0, 1, 2, 3, 11]))))
    assert message() == "mnist: train labels 0 to 11, expected 0 to 9"
    path.write_bytes(gzip.compress(np.array([2049, 2**32 - 1], ">u4").tobytes()))
    assert message().endswith("array of shape (4294967295,), expected (5,)")


@pytest.mark.parametrize("head", ["images", "nothing"])
def test_no_more_is_unpacked_than_the_set_has(folder, head):
    """64 MiB of zeros, after a right header and after none."""
    path = folder / "train-images-idx3-ubyte.gz"
    begin = gzip.decompress(path.read_bytes())[:16] if head == "images" else b""
    path.write_bytes(gzip.compress(begin + bytes(64 << 20), 1))
    tracemalloc.start()
    found = message()
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert found == f"{path}: " + ("more bytes after the header, expected 3920 (5 x 28 x 28)" if begin
                                   else "magic number 0, expected 2051")


def test_an_overlong_file_of_cifar_is_refused_by_its_size(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    with path.open("wb") as file:
        file.truncate(8 << 30)  # sparse
    with pytest.raises(data.DataError, match="8589934592 bytes, expected 30730000"):
        formats.read_cifar(path, 10_000)


def test_nan_is_refused():
    images = np.zeros((2, 8, 8, 1), np.float32)
    images[1, 3, 3] = np.nan
    with pytest.raises(data.DataError, match="NaN or infinity in train image 1"):
        data.Dataset("drawn", images, np.zeros(2, int), images[:0], np.zeros(0, int), 10)


@pytest.mark.parametrize("text",
                         ["1,2,3\n", "spam\n", ",".join(["17"] * 65) + "\n", ",".join(["nan"] * 65) + "\n",
                          ""])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_digits_of_another_form_are_refused(tmp_path, text):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(data.DataError, match=r"digits\.csv\.gz"):
        formats.read_digits(path)


def test_unknown_name():
    assert message(
        "imagenet") == "data set is 'imagenet', expected one of digits, mnist, fashion-mnist, cifar10, synthetic"


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A made-up CIFAR-10 of 4 images a file."""
    monkeypatch.setenv("REFSGD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "RECORDS", 4)
    monkeypatch.setattr(sets, "_CIFAR_PREFIX_RECORDS", 2)
    (tmp_path / "cifar10").mkdir()
    for k, file in enumerate(sets.files("cifar10")):
        records = np.zeros((4, 3073), np.uint8)
        records[:, 0] = np.arange(4)
        records[:, 1 : 1 + 1024] = 10 * k  # red
        records[:, 1 + 1024 + 35] = 255  # green, row 1, column 3
        (tmp_path / "cifar10" / file).write_bytes(records.tobytes())
    return tmp_path / "cifar10"


def test_cifar_is_read_plane_by_plane(cifar):
    whole = data.load("cifar10")
    assert whole.train_images.shape == (20, 32, 32, 3) and whole.test_images.shape == (4, 32, 32, 3)
    assert whole.train_labels.tolist() == [0, 1, 2, 3] * 5 and whole.note == ""
    assert whole.train_images[4, 7, 9, 0] == pytest.approx((10 / 255 - 0.4914) / 0.2470)
    assert whole.train_images[0, 1, 3, 1] == pytest.approx((1 - 0.4822) / 0.2435)
    assert whole.train_images[0, 3, 1, 1] == pytest.approx(-0.4822 / 0.2435)


def test_an_incomplete_cifar_says_so(cifar):
    (cifar / "data_batch_3.bin").unlink()
    (cifar / "test_batch_first1000.bin").write_bytes((cifar / "test_batch.bin").read_bytes()[: 2 * 3073])
    (cifar / "test_batch.bin").unlink()
    part = data.load("cifar10")
    assert part.note == "16 of 20 training images; the first 2 of 4 test images"
    assert len(part.test_labels) == 2
    (cifar / "test_batch_first1000.bin").unlink()
    assert "lacks test_batch.bin" in message("cifar10")


def test_spoiled_cifar_files_are_named(cifar):
    path = cifar / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert message("cifar10") == f"{path}: 12291 bytes, expected 12292 (4 records of 3073)"
    path.write_bytes(b"\x0b" + bytes(12291))
    assert message("cifar10") == f"{path}: label 11, expected 0 to 9"
    for file in cifar.iterdir():
        file.unlink()
    assert "set REFSGD_DATA" in message("cifar10") and "refsgd data cifar10" in message("cifar10")


def test_cifar_as_published():
    try:
        whole = data.load("cifar10")
    except data.DataError as error:
        pytest.skip(str(error))
    first = whole.train_images[:10_000]
    assert np.abs(first.mean(axis=(0, 1, 2))).max() < 0.02 and first.std() == pytest.approx(1, abs=0.02)
    counts = [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert np.bincount(whole.train_labels[:10_000]).tolist() == counts


def test_synthetic_images_are_a_function_of_their_arguments():
    first, second = data.load("synthetic:6x5x2"), data.load("synthetic:6x5x2")
    assert first.train_images.shape == (2000, 6, 5, 2) and first.train_images.dtype == np.float32
    assert np.array_equal(first.train_images, second.train_images)
    assert first.train_images.std() == pytest.approx(1, abs=0.1)
    assert np.bincount(first.test_labels).tolist() == [50] * 10
    assert not np.array_equal(first.train_images, data.synthetic((6, 5, 2), seed=1).train_images)
    centers = np.stack([first.train_images[first.train_labels == k].mean(axis=0) for k in range(10)])
    distances = ((first.test_images[:, None] - centers) ** 2).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == first.test_labels) > 0.9
    assert "expected synthetic:HxWxC" in message("synthetic:6x5")


def test_a_set_is_read_once_until_its_files_change(folder):
    """Results of many runs share its arrays, which nobody can write to."""
    first = data.load("mnist")
    assert data.load("mnist") is first
    labels = folder / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.full(5, 9))))
    os.utime(labels, ns=(1, 1))
    again = data.load("mnist")
    assert again.train_labels.tolist() == [9] * 5 and first.train_labels.tolist() == [0, 1, 2, 3, 4]
    labels.unlink()
    assert "lacks train-labels" in message()
