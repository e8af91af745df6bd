"""Pack a homework for upload: ``python submit.py``, beside ``homework.py``.

It needs nothing but Python and refsgd.  It looks whether the file can be graded, runs the check that the grader runs,
and writes ``submission.zip``: the file, the answers, and a note with your name and the points that you have seen.
"""

import argparse
import hashlib
import json
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# What the grader expects of this homework.
NAMES = ["homework"]
CHECK = ["--as", "ssp", "--forbid", "refsgd.algorithms.server"]
VERSION = "0.1.0"

HOMEWORK, ANSWERS, PACKED = Path("homework.py"), Path("answers.txt"), Path("submission.zip")


def refuse(why):
    """End with one line that says what to mend."""
    sys.exit(f"Nothing is packed: {why}")


def version():
    """The version of the library, which is the grader's."""
    try:
        import refsgd
    except ImportError:
        refuse(f"{sys.executable} does not find refsgd; activate the environment of the course")
    if refsgd.__version__ != VERSION:
        refuse(f"this is refsgd {refsgd.__version__}; the homework is graded with {VERSION}")
    return refsgd.__version__


def source():
    """The bytes of the homework, once it can be imported and has the names that are graded."""
    if not HOMEWORK.is_file():
        refuse(f"there is no {HOMEWORK} in {Path.cwd()}; copy skeleton.py to this name, and write it")
    try:
        found = runpy.run_path(str(HOMEWORK))
    except (Exception, SystemExit) as error:
        refuse(f"{HOMEWORK} cannot be imported: {type(error).__name__}: {error}")
    missing = [name for name in NAMES if name not in found]
    if missing:
        refuse(f"{HOMEWORK} does not define {', '.join(missing)}, as skeleton.py does")
    return HOMEWORK.read_bytes()


def points():
    """What the grader's check gives, as 'N of M points', or None where hidden tests give the points."""
    if not CHECK:
        return None
    with tempfile.TemporaryDirectory() as folder:
        grade = Path(folder, "grade.json")
        subprocess.run([sys.executable, "-m", "refsgd", "check", f"{HOMEWORK}:{NAMES[0]}", *CHECK, "--json", str(grade)])
        if not grade.exists():
            refuse("the check did not run; it says why above")
        found = json.loads(grade.read_text(encoding="utf-8"))
    if not found["score"]:
        refuse(f"it gets no points: {found['properties'][0]['text']}")
    return f"{found['score']} of {found['max_score']} points"


def main(arguments=None):
    """Check, pack, and say what to upload."""
    parser = argparse.ArgumentParser(description="Check homework.py and pack it for upload.")
    parser.add_argument("--name", help="your name; without it you are asked")
    parser.add_argument("--id", help="your student number or login; without it you are asked")
    given = parser.parse_args(arguments)
    PACKED.unlink(missing_ok=True)  # what is uploaded is what has been checked
    about = {"version": version(), "sha256": hashlib.sha256(text := source()).hexdigest()}
    try:
        about |= {"name": given.name or input("Your name: ").strip(), "id": given.id or input("Your student number: ").strip()}
    except EOFError:
        refuse("say who you are: --name NAME --id ID")
    if not (about["name"] and about["id"]):
        refuse("a name and a student number are needed")
    about["seen"] = points()
    files = {HOMEWORK.name: text, "submission.json": json.dumps(about, indent=1, allow_nan=False).encode()}
    if ANSWERS.is_file() and ANSWERS.read_bytes().strip():
        files[ANSWERS.name] = ANSWERS.read_bytes()
    with zipfile.ZipFile(PACKED, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    if ANSWERS.name not in files:
        print(f"There is no {ANSWERS}, so the points for your answers are missing.")
    print(f"Upload {PACKED} of {about['name']} ({about['id']})" + (f": {about['seen']}." if about["seen"] else "."))


if __name__ == "__main__":
    main()
