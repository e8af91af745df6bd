"""Users without a home directory, or with one in which nothing can be written: everything works, and one
line says what is not kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refsgd
from benchmarks import studies
from tests.marks import mostly_slow

BEFORE = """
import os, pwd, sys
def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
if "HOME" not in os.environ:
    pwd.getpwuid = nobody  # what a user number without an entry gives
"""
LOAD = """
import refsgd.problems.data
try:
    refsgd.problems.data.load("mnist")
except refsgd.problems.data.DataError as error:
    print(error, file=sys.stderr)
"""
NEEDS = {  # what has no place -> what is done, what is said, once
    "kernels": ("import refsgd.problems.nn.kernels\n", "compiled kernels are kept in "),
    "studies": ("from benchmarks.studies.lab import cache_folder; assert cache_folder() is None\n",
                "results are not kept, since "),
    "data": (LOAD, "mnist: no files in "),
    "fetching": ("from refsgd.cli import main; assert main(['data', 'mnist']) == 1\n", "refsgd: mnist: "),
}


QUICK = pytest.mark.parametrize("environment", mostly_slow(["none", "unwritable"], "none"), indirect=True)


@pytest.fixture
def environment(request, tmp_path):
    """Of a process whose user has no home, or one that is a device; with a package folder that takes no
    files."""
    package, temporary, here = (tmp_path / name for name in ("package", "temporary", "here"))
    for source in (Path(refsgd.__file__).parent, Path(studies.__file__).parents[1]):
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    # a file, which not even root can make a folder of
    (package / "refsgd" / "problems" / "nn" / "__pycache__").touch()
    temporary.mkdir()
    here.mkdir()
    kept = {k: v for k, v in os.environ.items()
            if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "REFSGD_DATA")}
    home = {"HOME": "/dev/null"} if request.param == "unwritable" else {}
    return {**kept, **home, "PYTHONPATH": str(package), "TMPDIR": str(temporary),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}, temporary, here


def said(environment, program):
    """What a program writes to standard error in that environment; it ends well and leaves nothing in its
    folder."""
    variables, _, here = environment
    done = subprocess.run([sys.executable, "-c", BEFORE + program], env=variables, cwd=here,
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and not list(here.iterdir()), done.stderr[-2000:]
    return done.stderr


@QUICK
def test_the_library_is_imported_and_simulates_in_silence(environment):
    """Nothing is written, not even for a moment: an import makes no file."""
    no_files = (
        "import tempfile\ntempfile.TemporaryFile = tempfile.NamedTemporaryFile = tempfile.mkdtemp = None\n")
    assert said(environment, no_files + "import refsgd\nrefsgd.run('bsp', data='quadratic', steps=2)\n") == ""
    assert not list(environment[1].iterdir())


@QUICK
@pytest.mark.parametrize("what", NEEDS)
def test_one_line_says_what_is_not_kept(environment, what):
    """When it is needed, and what to set."""
    if what == "fetching":
        pytest.importorskip("pooch")
    program, line = NEEDS[what]
    found = said(environment, program)
    assert found.count(line) == 1 and "Traceback" not in found
    assert any(f"{name} to " in found
               for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "set REFSGD_DATA")), found


@QUICK
def test_kernels_are_compiled_where_no_file_can_be_made_at_all(environment):
    """And are not kept."""
    nowhere = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/dev/null']\n"
    found = said(environment,
                 nowhere
                 + "import refsgd.problems.nn.nets, benchmarks.compiled_server\nassert "
                   "refsgd.problems.nn.nets.needs_compiling()\n")
    assert found.count("compiled kernels are not kept") == 1 and "expected NUMBA_CACHE_DIR" in found
