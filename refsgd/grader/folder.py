"""Grade all submissions of a folder: `refsgd check FOLDER:FUNCTION --as ALGORITHM --reports DIR`.

A submission is a file of Python, an archive, or a folder, as learning platforms hand them out; its name is
that of the student.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from refsgd.experiment.arguments import Usage
from refsgd.grader.grades import Grade
from refsgd.grader.grading import refused

LARGEST = 1 << 20  #: bytes of a file; a program of a homework has some thousands


def submissions(folder: Path) -> dict[str, Path]:
    """The submissions of a folder, by name."""
    found = dict[str, Path]()
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")) or not (path.is_dir() or path.suffix in (".py", ".zip")):
            continue
        name = path.name.removesuffix(".py").removesuffix(".zip")
        if name in found:
            raise Usage(f"{found[name].name} and {path.name} in {folder}; expected one submission of a name")
        found[name] = path
    if not found:
        raise Usage(f"no submission in {folder}; expected files .py, archives .zip, or folders")
    return found


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a submission by name, without their folders, and without a system's own files."""
    if path.suffix == ".zip" and path.is_file():
        with ZipFile(path) as archive:
            for info in archive.infolist():
                if "__MACOSX" not in info.filename and not info.is_dir():
                    with archive.open(info) as file:
                        yield PurePath(info.filename).name, file.read(LARGEST + 1)
        return
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            with each.open("rb") as file:
                yield each.name, file.read(LARGEST + 1)


def unpack(path: Path, into: Path) -> tuple[Path, str]:
    """Copy a submission's program and its answers; where the program is, and why it is not, if so."""
    try:
        wanted = {name: content for name, content in _contents(path)
                  if PurePath(name).suffix in (".py", ".txt") and not name.startswith("._")}
    except Exception as error:  # whatever an archive of someone else's can do
        return path, f"{path.name} cannot be unpacked: {type(error).__name__}: {error}"
    programs = [name for name in wanted if name.endswith(".py")]
    if len(programs) != 1:
        return path, f"{' and '.join(programs) or 'no file .py'} in {path.name}; expected one program"
    if large := [name for name, content in wanted.items() if len(content) > LARGEST]:
        return path, f"{large[0]} has more than {LARGEST} bytes; expected a program of some thousand"
    for name, content in wanted.items():
        (into / name).write_bytes(content)
    return into / programs[0], ""


def of_folder(folder: Path, function: str, algorithm: str | None,
           grade: Callable[[str], Grade]) -> Iterator[tuple[str, Grade, str]]:
    """Each submission's name, its grade, and what it answers in words."""
    for name, path in submissions(folder).items():
        with TemporaryDirectory() as place:
            program, why = unpack(path, Path(place))
            target = f"{program}:{function}"
            found = refused(target, algorithm, why) if why else grade(target)
            answers = Path(place, "answers.txt")
            said = answers.read_text("utf-8", "replace") if answers.is_file() else ""
        yield name, found | {"submission": f"{path.name}:{function}"}, said


def as_csv(grades: Sequence[tuple[str, Grade]]) -> str:
    """A row for each submission, with a column for points by hand and the failure that explains most."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["submission", "points", "of", "by hand", "failed", "why"])
    for name, grade in grades:
        # first the checks that show a schedule
        lost: list[dict[str, Any]] = sorted((row for row in grade["properties"] if row["passed"] is False),
                                            key=lambda row: row["schedule"] is None)
        first = [lost[0]["name"], lost[0]["text"]] if lost else ["", ""]
        table.writerow([name, grade["score"], grade["max_score"], "", *first])
    return out.getvalue()
