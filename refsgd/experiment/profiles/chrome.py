"""Chrome traces of training jobs: events by rank and kind.

Form: "Trace Event Format", Google 2016; times in microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from refsgd.cluster.units import as_bytes
from refsgd.experiment.arguments import Usage

LARGEST = 1 << 29  #: bytes of a trace's text
ADJUSTED = 1000.0  #: microseconds by which a clock that is adjusted may shorten an event below 0
FORM = "JSON of a Chrome trace, as torch.profiler's export_chrome_trace writes it"
RANK = re.compile(r"rank[\W_]{0,2}(\d+)", re.IGNORECASE)
DEVICES = re.compile(r"mtia|hpu|npu|tpu|xpu|neuron", re.IGNORECASE)  #: whose operators cannot be read
#: kinds of events by category and name in lower case; the first that fits
KINDS = {kind: re.compile(form) for kind, form in {
    "step": r"[^/]*/profilerstep#\d+$",
    "sent": r"(?!kernel)[^/]*/(nccl|gloo|mpi|ucc):|kernel/.*(nccl|rccl)", "kernel": r"kernel/",
    "forward": r"[^/]*/(# *)*(forward|distributeddataparallel.forward)",
    "backward": r"(?!cpu_op)[^/]*/(# *)*backward", "optimiser": r"[^/]*/(# *)*optimizer\b(?!\.zero)",
    "autograd": r"[^/]*/autograd::engine::evaluate_function",
    "operator": r"(cpu_op|operator)/(?!record_param_comms|c10d::)"}.items()}
COLLECTIVE = re.compile(r"(all|reduce)_?(reduce|gather|scatter|to(?=_?all))")
PHASES = "forward", "backward", "optimiser"
MARKS = "sent", "backward", "autograd", "optimiser"  #: kinds of training
#: bytes of a number, by PyTorch's names of types
BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "short": 2, "bool": 1,
         "unsigned char": 1, "signed char": 1, "byte": 1, "char": 1}


class Span(NamedTuple):
    """A complete event of a process, in seconds on its clock."""

    start: float
    end: float
    name: str = ""
    thread: str = ""
    step: int = 0
    chunk: int = 0  #: of the layers of an interleaved pipeline stage
    nbytes: float = 0.0  #: that a rank gives to a collective; 0: unknown
    numbers: float = 0.0  #: in those bytes
    group: int = 0  #: ranks of a collective; 0: unknown


#: a rank's events by kind; "done": of a timeline; "gpu step": of the GPU, which repeats marks of the host
Kinds = dict[str, list[Span]]


class File(NamedTuple):
    """What a file says."""

    path: str
    ranks: dict[int, Kinds]
    world: int  #: ranks of the job; 0: unknown
    numbered: bool  #: whether it says which rank it is


def refuse(path: object, found: str, expected: str = FORM) -> NoReturn:
    """Raise the one line about a trace that cannot be used."""
    raise Usage(f"trace {path}: {found}; expected {expected}")


def load(path: str) -> File:
    """Read a file with the events of one rank or of several."""
    processes, ranks = defaultdict[Any, Kinds](lambda: defaultdict(list)), dict[Any, int]()
    begun = dict[tuple[str, str], list[dict[str, Any]]]()

    def event(value: dict[str, Any]) -> dict[str, Any] | None:
        phase, args = value.get("ph"), value.get("args")
        if phase is None or ("ts" not in value and phase != "M"):
            return value
        args, pid = args if isinstance(args, dict) else {}, str(value.get("pid"))
        key = pid, str(value.get("tid"))
        if phase == "M" and str(value.get("name")) in ("process_name", "process_labels"):
            if said := RANK.search(" ".join(map(str, args.values()))):
                ranks[pid] = int(said[1])
        elif phase == "B":
            begun.setdefault(key, []).append({**value, "args": args})
        elif phase == "E":
            if not begun.get(key):
                refuse(path, f"an end of {value.get('name')!r} without its beginning", "pairs of B and E")
            first = begun[key].pop()
            took = _number(path, value, "ts") - _number(path, first, "ts")
            _sort(path, {**first, "dur": took}, first["args"] | args, processes[pid])
        elif phase == "X":
            _sort(path, value, args, processes[pid])
        return None

    data = _json(path, event)
    if not isinstance(data, dict):
        data = {"traceEvents": data} if isinstance(data, list) else {}
    if "traceEvents" not in data or not processes:
        refuse(path, "no events")
    return _ranked(path, dict(processes), ranks, data.get("distributedInfo"))


def _json(path: str, event: Any) -> Any:
    """The values of a file, whose objects go through `event` as they end, so that few are in memory."""
    try:
        file, size = Path(path), Path(path).stat().st_size
        if not file.is_file() or not size:
            refuse(path, "not a regular file" if size or not file.is_file() else "it is empty")
        with file.open("rb") as raw:
            plain: Any = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            data = plain.read(LARGEST + 1) if size <= LARGEST else b""
        if max(size, len(data)) > LARGEST:
            refuse(path, f"more than {as_bytes(LARGEST)} of text", "a profile of fewer steps")
        text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")  # one byte each; no name is printed
        del data
        return json.loads(text, object_hook=event, strict=False)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) - 8 or error.msg.startswith("Unterminated")
        refuse(path, "it ends in the middle" if ended and error.pos else f"no JSON, {error.msg} at character "
               f"{error.pos}", "the whole file as it was written" if ended and error.pos else FORM)
    except EOFError:
        refuse(path, "its gzip data end in the middle", "the whole file as it was written")
    except (zlib.error, gzip.BadGzipFile, RecursionError) as error:
        refuse(path, f"damaged, {error}", "the file as it was written")
    except OSError as error:
        refuse(path, error.strerror or str(error), "a file that can be read")


def _number(path: str, event: dict[str, Any], key: str) -> float:
    """A time of an event in microseconds, which may be text."""
    try:
        value = float(event.get(key, 0.0))
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or (key == "dur" and value < -ADJUSTED):
        refuse(path, f"{key} {event.get(key)!r} of event {str(event.get('name'))[:40]!r}",
               "finite microseconds" + ", at least 0" * (key == "dur"))
    return max(value, 0.0) if key == "dur" else value


def _sort(path: str, event: dict[str, Any], args: dict[str, Any], kinds: Kinds) -> None:
    """Put an event where it belongs."""
    name, category = str(event.get("name", "")), str(event.get("cat", ""))
    if DEVICES.match(category):
        refuse(path, f"operators of a device, {category!r}", "kernels of CUDA or ROCm, or CPU operators")
    start, text = _number(path, event, "ts") / 1e6, f"{category}/{name}".lower()
    span = Span(start, start + _number(path, event, "dur") / 1e6)
    kind = next((kind for kind, form in KINDS.items() if form.match(text)), "")
    repeated = text.startswith("gpu_user_annotation/")  # of each stream, from its first kernel to its last
    if kind in ("step", "sent"):
        op = str(args.get("Collective name") or name).lower().split("(")[0].rpartition(":")[2].strip("_")
        if usual := COLLECTIVE.search(op):  # whatever its variant, such as _base, or its kernel
            op = f"{usual[1]}_{usual[2]}" + "_all" * (usual[2] == "to")
        step, (nbytes, numbers) = int(name.partition("#")[2]) if kind == "step" else 0, _sizes(args)
        span = span._replace(name=op, nbytes=nbytes, numbers=numbers, step=step,
                             group=size if isinstance(size := args.get("Group size"), int) else 0,
                             thread="kernel" if text.startswith("kernel/") else name.partition(":")[0])
    if str(step_ := args.get("step", "")).isdecimal() and kind != "step":
        chunk = args.get("model_chunk", 0)
        kinds["done"].append(span._replace(name=name.lower(), thread=str(event.get("tid")), step=int(step_),
                                           chunk=chunk if isinstance(chunk, int) else 0))
    elif kind and not repeated:
        kinds[kind].append(span)
    elif kind in ("step", *PHASES):
        kinds[f"gpu {kind}"].append(span)


def _sizes(args: dict[str, Any]) -> tuple[float, float]:
    """Bytes that a rank gives to a collective, and numbers in them; 0: its record has no type or sizes."""
    def numbers(dims: Any) -> float:
        if not isinstance(dims, list):
            return 0.0
        return float(prod(dims)) if all(isinstance(each, int) for each in dims) else sum(map(numbers, dims))

    kinds, count, dims = args.get("Input type"), args.get("In msg nelems"), args.get("Input Dims")
    kind = str(args.get("dtype", kinds[0] if isinstance(kinds, list) and kinds else "")).lower()
    size = float(count) if isinstance(count, int | float) else numbers(
        dims[0] if isinstance(dims, list) and dims else None)
    return BYTES.get(kind.removeprefix("c10::"), 0) * size, size


def _ranked(path: str, processes: dict[str, Kinds], ranks: dict[Any, int], job: Any) -> File:
    """The processes that have steps, by rank; if there is one, events of devices are its own."""
    job = job if isinstance(job, dict) else {}
    own = [pid for pid, kinds in processes.items() if kinds.get("step")] or [
        pid for pid, kinds in processes.items() if kinds.get("done")]
    if not own:
        refuse(path, "no steps", "ProfilerStep# of torch.profiler's schedule, or operations with args.step")
    number, world = (int(text) if (text := str(job.get(key, ""))).isdecimal() else None
                     for key in ("rank", "world_size"))
    world = world or 0
    if len(own) == 1:
        merged = processes.pop(own[0])
        for kinds in processes.values():
            for kind, some in kinds.items():
                merged[kind] += some
        if merged.get("step") and not any(merged.get(kind) for kind in MARKS):
            refuse(path, "no backward pass, optimiser or collective in its steps", "a profile of training")
        processes = {own[0]: merged}
        said = RANK.search(f"{Path(path).name} {Path(path).parent.name}")
        if number is not None:
            ranks = {own[0]: number}
        elif own[0] not in ranks and said:
            ranks[own[0]] = int(said[1])
    known = {ranks[pid] for pid in own if pid in ranks}
    if known and max(known) >= world > 0:
        refuse(path, f"rank {max(known)} of a job of {world}", "ranks below the world size")
    if len(known) == len(own):
        return File(path, {ranks[pid]: processes[pid] for pid in own}, world, True)
    own.sort(key=lambda pid: (len(pid), pid))
    small = all(pid.isdecimal() and len(pid) < 6 for pid in own) and not processes[own[0]].get("step")
    return File(path, {int(pid) if small else i: processes[pid] for i, pid in enumerate(own)}, world,
                small or len(own) > 1)
