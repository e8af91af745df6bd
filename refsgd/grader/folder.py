"""Grade all submissions of a folder: `refsgd check FOLDER:FUNCTION --as ALGORITHM --reports DIR`.

A submission is a file of Python, an archive, or a folder, as learning platforms hand them out; its name is
that of the student.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from refsgd.experiment.arguments import Usage
from refsgd.grader.grades import Grade
from refsgd.grader.grading import refused

LARGEST = 1 << 20  #: bytes of a file; a program of a homework has some thousands
MOST = 20  #: files of a submission
KINDS = (".py", ".zip")


def submissions(folder: Path, into: Path) -> dict[str, Path]:
    """The submissions of a folder by name, without the reports, if these are in it."""
    found = dict[str, Path]()
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")) or path.resolve() == into.resolve():
            continue
        name = path.stem if path.suffix.lower() in KINDS else path.name
        if name in found:
            raise Usage(f"{found[name].name} and {path.name} in {folder}; expected one submission of a name")
        found[name] = path
    if not found:
        raise Usage(f"no submission in {folder}; expected files .py, archives .zip, or folders")
    return found


def _is_wanted(name: str) -> bool:
    return name.lower() == "answers.txt" or (name.lower().endswith(".py") and not name.startswith("._"))


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Programs and answers of a submission by name, without their folders and a system's own files."""
    if path.is_symlink():  # it could lead out of the submission
        return
    if path.is_dir():
        for each in sorted(path.iterdir()):
            yield from _contents(each)
    elif path.suffix.lower() == ".zip":
        with ZipFile(path) as archive:
            for info in archive.infolist():
                at = PurePosixPath(info.filename.replace("\\", "/"))
                if "__MACOSX" not in at.parts and not info.is_dir() and _is_wanted(at.name):
                    with archive.open(info) as file:
                        yield at.name, file.read(LARGEST + 1)
    elif path.is_file() and _is_wanted(path.name):
        with path.open("rb") as file:
            yield path.name, file.read(LARGEST + 1)


def unpack(path: Path, into: Path) -> tuple[Path, str]:
    """Copy a submission's program and its answers; where the program is, and why it is not, if so."""
    found = set[str]()
    try:
        for name, content in ((name.lower(), content) for name, content in _contents(path)):
            if name in found or len(found) == MOST:
                return path, f"{path.name} has more than one {name}, or {MOST} files; expected one program"
            if len(content) > LARGEST:
                return path, f"{name} has more than {LARGEST} bytes; expected a program of some thousand"
            (into / name).write_bytes(content)
            found.add(name)
    except Exception as error:  # whatever an archive of someone else's can do
        return path, f"{path.name} cannot be unpacked: {type(error).__name__}: {error}"
    programs = sorted(found - {"answers.txt"})
    if len(programs) != 1:
        return path, f"{' and '.join(programs) or 'no file .py'} in {path.name}; expected one program"
    return into / programs[0], ""


def of_folder(folder: Path, into: Path, function: str, algorithm: str | None,
              grade: Callable[[str], Grade]) -> Iterator[tuple[str, Grade, str]]:
    """Each submission's name, its grade, and what it answers in words."""
    for name, path in submissions(folder, into).items():
        with TemporaryDirectory() as place:
            program, why = unpack(path, Path(place))
            answers = Path(place, "answers.txt")  # read before the program runs
            said = answers.read_text("utf-8-sig", "replace") if answers.is_file() else ""
            target = f"{program}:{function}"
            found = refused(target, algorithm, why) if why else grade(target)
        yield name, found | {"submission": f"{path.name}:{function}"}, said


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula, on one line."""
    text = " ".join(text.splitlines())
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


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
        table.writerow([_cell(name), grade["score"], grade["max_score"], "", *map(_cell, first)])
    return out.getvalue()
