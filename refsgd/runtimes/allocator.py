"""Where numpy puts large arrays: a memory that other processes see too, handed out by compiled functions that numpy calls (NEP 49).

An arena is one run of bytes, cut into blocks as they are asked for; a block is used again for arrays of about its
size.  A table of int64 words describes it.  Only the owner of an arena takes and lends blocks; whoever was lent one
gives it back by a word of its own.  So no word has two writers, and a block is free when its array is gone
and each receiver has given back as often as it was lent to.

The functions below are compiled because numpy calls them for every array, and because a call of compiled code
cannot be interrupted: helper threads drop arrays too.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import Any

import numba

from refsgd.kernel_cache import kept

# numba carries annotations for some of its functions only.
types: Any = numba.types
njit: Any = partial(numba.njit, cache=kept())
cfunc: Any = partial(numba.cfunc, cache=kept())
carray: Any = numba.carray  # type: ignore[attr-defined]

LARGE = 1 << 16  # bytes; from here on a reference beats a copy through a ring
BLOCKS = 512  # of an arena
STAGGER = 17 * 64  # bytes between blocks: arrays that begin at the same place of a page slow each other down
PAGE = 4096

BASE, END, TOP, COUNT, HOSTS = range(5)  # addresses of the first byte, behind the last and of the first unused one; blocks; receivers
START = 8  # of each block: its address,
ROOM = START + BLOCKS  # its bytes,
HELD = ROOM + BLOCKS  # whether its array lives,
READERS = HELD + BLOCKS  # and for each receiver how often it was lent, and given back

_LENGTH = (1 << 40,)  # numba wants one for an address
_SET_HANDLER = 304  # the place of PyDataMem_SetHandler in numpy's table of C functions
_int, _pointer = types.int64, types.CPointer(types.int64)
_words = types.Array(_int, 1, "C")
_malloc = types.ExternalFunction("malloc", _int(_int))
_calloc = types.ExternalFunction("calloc", _int(_int, _int))
_realloc = types.ExternalFunction("realloc", _int(_int, _int))
_free = types.ExternalFunction("free", types.void(_int))
_memset = types.ExternalFunction("memset", _int(_int, types.int32, _int))
_memcpy = types.ExternalFunction("memcpy", _int(_int, _int, _int))


def words_of(hosts: int) -> int:
    """Words of the table of an arena with this many receivers."""
    return READERS + 2 * hosts * BLOCKS


def prepare(words: Any, start: int, nbytes: int, hosts: int) -> None:
    """Make a table that is all zeros describe an arena without blocks."""
    words[BASE], words[TOP], words[END], words[HOSTS] = start, start, start + nbytes, hosts


@njit(types.boolean(_words, _int))
def is_lent(words, block):  # type: ignore[no-untyped-def]
    """Whether some receiver may still read a block."""
    first, lent = READERS + 2 * words[HOSTS] * block, False
    for at in range(first, first + 2 * words[HOSTS], 2):
        lent |= words[at] != words[at + 1]
    return lent


@njit(_int(_words, _int))
def take(words, nbytes):  # type: ignore[no-untyped-def]
    """Owner: the address of a block of at least `nbytes`, the smallest that is free; 0 if there is none."""
    best = -1
    for block in range(words[COUNT]):
        if not words[HELD + block] and words[ROOM + block] >= nbytes and (best < 0 or words[ROOM + block] < words[ROOM + best]) and not is_lent(words, block):
            best = block
    fresh, room = words[COUNT], -(-nbytes // PAGE) * PAGE
    if (best < 0 or words[ROOM + best] > 2 * nbytes) and fresh < BLOCKS and words[TOP] + room + STAGGER <= words[END]:
        best = fresh
        words[START + best], words[ROOM + best] = words[TOP], room
        words[TOP] += room + STAGGER
        words[COUNT] += 1
    if best < 0:
        return 0
    words[HELD + best] = 1
    return words[START + best]


@njit(_int(_words, _int))
def block_at(words, address):  # type: ignore[no-untyped-def]
    """The block that holds an address; -1 if it lies outside of the arena."""
    if not words[BASE] <= address < words[TOP]:
        return -1
    low, high = 0, words[COUNT]
    while high - low > 1:
        middle = (low + high) // 2
        if words[START + middle] <= address:
            low = middle
        else:
            high = middle
    return low


@njit(types.void(_words, _int))
def release(words, address):  # type: ignore[no-untyped-def]
    """Owner: the array of a block is gone; it is used again once nobody reads it."""
    words[HELD + block_at(words, address)] = 0


@njit(_int(_words, _int, _int))
def lend(words, address, to):  # type: ignore[no-untyped-def]
    """Owner: let a receiver read the block at an address; the distance from the first byte, or -1 outside of the arena."""
    block = block_at(words, address)
    if block < 0:
        return -1
    words[READERS + 2 * (words[HOSTS] * block + to)] += 1
    return address - words[BASE]


@njit(_int(_words, _int, _int, _int))
def borrow(words, distance, nbytes, me):  # type: ignore[no-untyped-def]
    """Receiver: the word by which it gives back what it was lent, or -1 if it was lent no such bytes."""
    address = words[BASE] + distance
    block = block_at(words, address)
    if block < 0 or nbytes > words[ROOM + block] - (address - words[START + block]):
        return -1
    at = READERS + 2 * (words[HOSTS] * block + me)
    return at + 1 if words[at] != words[at + 1] else -1


@njit(types.void(_words, _int))
def give_back(words, at):  # type: ignore[no-untyped-def]
    """Receiver: an array that was lent is not needed any more."""
    words[at] += 1


@njit(types.void(_words, _int))
def forget(words, to):  # type: ignore[no-untyped-def]
    """Owner: a receiver has died, and gives nothing back."""
    for block in range(words[COUNT]):
        at = READERS + 2 * (words[HOSTS] * block + to)
        words[at + 1] = words[at]


# -- what numpy calls; the context is the address of the table --------------------------------------------------


@cfunc(_int(_pointer, _int))
def _allocate(context, nbytes):  # type: ignore[no-untyped-def]
    address = take(carray(context, _LENGTH), nbytes) if nbytes >= LARGE else 0
    return address if address else _malloc(nbytes)


@cfunc(_int(_pointer, _int, _int))
def _allocate_zeros(context, count, size):  # type: ignore[no-untyped-def]
    address = take(carray(context, _LENGTH), count * size) if count * size >= LARGE else 0
    return _memset(address, 0, count * size) if address else _calloc(count, size)


@cfunc(_int(_pointer, _int, _int))
def _resize(context, address, nbytes):  # type: ignore[no-untyped-def]
    words = carray(context, _LENGTH)
    block = block_at(words, address)
    if block < 0:
        return _realloc(address, nbytes)
    moved = _malloc(nbytes)
    if moved:
        _memcpy(moved, address, min(nbytes, words[ROOM + block]))
        words[HELD + block] = 0
    return moved


@cfunc(types.void(_pointer, _int, _int))
def _deallocate(context, address, nbytes):  # type: ignore[no-untyped-def]
    words = carray(context, _LENGTH)
    if block_at(words, address) < 0:
        _free(address)
    else:
        release(words, address)


class _Functions(ctypes.Structure):
    """numpy's PyDataMemAllocator."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("functions", _Functions)]


_installed: list[_Handler] = []  # arrays refer to the handler that made them until the process ends


def install(table: int) -> None:
    """From now on numpy's large arrays of this thread, and of threads that copy its context, are blocks of an arena.

    Where no block is free they lie in the process's own memory as before.  The arena must stay mapped for as long as the process lives.
    """
    functions = _Functions(table, *(f.address for f in (_allocate, _allocate_zeros, _resize, _deallocate)))
    _installed.append(_Handler(b"refsgd_arena", 1, functions))
    api = ctypes.pythonapi
    pack, unpack = api.PyCapsule_New, api.PyCapsule_GetPointer
    pack.restype, pack.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    unpack.restype, unpack.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    umath = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]  # numpy 2 or 1; numba needs it
    functions_of_numpy = ctypes.cast(unpack(umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions_of_numpy[_SET_HANDLER])
    set_handler(pack(ctypes.addressof(_installed[-1]), b"mem_handler", None))

