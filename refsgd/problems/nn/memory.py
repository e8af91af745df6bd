"""Memory for activations and their gradients: preallocated, with borders of zeros, addressed by strides."""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np

from refsgd.problems.nn.layer import Array, Shape

_LINE = 64  # bytes of a cache line

#: an address, and the strides from one image, row and pixel to the next, in bytes
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """The arguments and the mode of one call, which every step receives."""

    x: int  #: address of the parameters (float32, d of them)
    g: int  #: address of their gradient, which is added to; 0 without a backward pass
    fixed: bool = False  #: batch norm uses its last statistics, and dropout keeps everything
    key: int | None = None  #: chooses what dropout drops, 0 to 2**64 - 1; None: nothing
    first: int = 0  #: number of the first image in the batch of which these are some


def keyed(key: int, number: int, first: int) -> dict[str, Array]:
    """What dropout `number` (from 1) of a net takes: `first`, and a key of its own, so that no two drop the
    same."""
    return {"key": np.asarray((key + (number - 1) * 0x9E3779B97F4A7C15) % 2**64, np.uint64),
            "first": np.asarray(first)}


def zeros(*shape: int) -> Array:
    """Zeros aligned to a cache line."""
    count = prod(shape)
    room = np.zeros(count + _LINE // 4, np.float32)
    first = -room.ctypes.data % _LINE // 4
    return room[first : first + count].reshape(shape)


class Room:
    """Memory that several fields, or several steps, use in turn."""

    def __init__(self) -> None:
        self.floats = 0  # of one image
        self.free_after = -1  # the last step that uses it
        self.data = zeros(0)
        self.address = 0  # asking for it takes a microsecond

    def allocate(self, images: int) -> None:
        """Allocate memory if there is not enough; previous contents are lost."""
        if self.data.size < images * self.floats:
            self.data = zeros(images * self.floats)
            self.address = self.data.ctypes.data


class Field:
    """Memory of one array (images, H, W, C) with a border of ``pad`` pixels of zeros around each image.

    ``shape`` is that of one image without its border; a row of features is one pixel.  ``place`` is that of
    the first pixel inside the border of the first image.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape if len(shape) == 3 else (1, 1, *shape)
        self.pad = 0
        self.of: Field | Room | None = None  # whose memory this one uses
        self.data = zeros(0)
        self.place: Place = (0, 0, 0, 0)

    @property
    def floats(self) -> int:
        """Floats of one image, border included."""
        height, width, channels = self.shape
        return (height + 2 * self.pad) * (width + 2 * self.pad) * channels

    def allocate(self, images: int) -> None:
        """Allocate memory if there is not enough; previous contents are lost."""
        if self.of is not None:
            self.of.allocate(images)
            self.data = self.of.data
        elif self.data.size < images * self.floats:
            self.data = zeros(images * self.floats)
        pixel = 4 * self.shape[2]
        row = (self.shape[1] + 2 * self.pad) * pixel
        self.place = (self.data.ctypes.data + self.pad * (row + pixel), 4 * self.floats, row, pixel)

    def at(self, row: int, column: int, stride: int = 1) -> Place:
        """The place of every ``stride``th pixel from (row, column) on."""
        first, image, down, right = self.place
        return first + row * down + column * right, image, stride * down, stride * right

    def images(self, b: int, border: bool = False) -> Array:
        """The first b images, maybe with their borders: a view."""
        (height, width, c), pad = self.shape, self.pad
        whole = self.data[: b * self.floats].reshape(b, height + 2 * pad, width + 2 * pad, c)
        return whole if border else whole[:, pad : pad + height, pad : pad + width]

    def need(self, pad: int) -> None:
        """Request a border of some width, before memory is allocated."""
        self.pad = max(self.pad, pad)


class Buffer:
    """A step's output for every image, and the gradient of the loss with respect to it.

    Successive steps with the same gradient may share its field.
    """

    def __init__(self, shape: Shape, wanted: bool = True) -> None:
        self.shape = shape
        self.value = Field(shape)
        self.gradient = Field(shape)
        self.wanted = wanted  # whether an earlier layer has parameters, so that the gradient is needed
        self.masks = False  # whether the gradient of a relu is 0 where the value is 0

    def reshaped(self, shape: Shape) -> Buffer:
        """The same memory, which must have no border, as another shape."""
        found = Buffer(shape, self.wanted)
        found.masks = self.masks
        found.value.of, found.gradient.of = self.value.of or self.value, self.gradient.of or self.gradient
        return found

    @property
    def size(self) -> int:
        """Numbers of one image."""
        return prod(self.shape)


class Scratch:
    """Memory that steps use in turn: named areas, each of the largest requested size."""

    def __init__(self) -> None:
        self._areas: defaultdict[str, Room] = defaultdict(Room)

    def need(self, name: str, floats: int) -> None:
        """Request an area of some size, before `allocate`."""
        self._areas[name].floats = max(self._areas[name].floats, floats)

    def allocate(self) -> None:
        """Allocate memory if there is not enough."""
        for area in self._areas.values():
            area.allocate(1)

    @property
    def nbytes(self) -> int:
        """Bytes of all areas."""
        return 4 * sum(area.floats for area in self._areas.values())

    def address(self, name: str) -> int:
        """The address of an area."""
        return self._areas[name].address
