"""Augmented images: which pixels move where, and that only (seed, epoch, index) decides."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.data import augmented

IMAGES = np.random.default_rng(0).standard_normal((50, 6, 5, 2)).astype(np.float32)


def candidates(image, shift, flip):
    """Every image that may come out."""
    padded = np.pad(image, ((shift, shift), (shift, shift), (0, 0)))
    for r in range(2 * shift + 1):
        for c in range(2 * shift + 1):
            moved = padded[r : r + image.shape[0], c : c + image.shape[1]]
            yield moved
            if flip:
                yield moved[:, ::-1]


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_an_image_is_moved_and_mirrored(seed, epoch, shift, flip):
    (image,) = augmented(IMAGES, [7], seed, epoch, shift, flip)
    assert any(np.array_equal(image, other) for other in candidates(IMAGES[7], shift, flip))


def test_every_change_occurs_and_about_as_often():
    many = augmented(np.repeat(IMAGES[:1], 3600, axis=0), np.arange(3600), seed=1, shift=1)
    counts = [sum(np.array_equal(image, other) for image in many) for other in candidates(IMAGES[0], 1, True)]
    assert sum(counts) == 3600
    assert all(abs(count - 200) < 5 * np.sqrt(200) for count in counts)


def test_the_company_of_an_image_does_not_matter():
    together = augmented(IMAGES, np.arange(50), seed=3, epoch=2)
    alone = np.concatenate([augmented(IMAGES, [k], seed=3, epoch=2) for k in range(50)])
    assert np.array_equal(together, alone)
    assert not np.array_equal(together, augmented(IMAGES, np.arange(50), seed=3, epoch=3))
    assert not np.array_equal(together, augmented(IMAGES, np.arange(50), seed=4, epoch=2))


def test_no_shift_and_no_flip_change_nothing():
    assert np.array_equal(augmented(IMAGES, [3, 3, 1], 0, shift=0, flip=False), IMAGES[[3, 3, 1]])
    assert augmented(IMAGES, [], 0).shape == (0, 6, 5, 2)
    with pytest.raises(ValueError, match="shift is -1"):
        augmented(IMAGES, [0], 0, shift=-1)
