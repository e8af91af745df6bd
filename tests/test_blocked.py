"""The core needs numpy alone: it works where numba, psutil, rich, matplotlib and their like cannot be imported."""

import os
import subprocess
import sys
import textwrap

BLOCKED = ("numba", "psutil", "rich", "matplotlib", "threadpoolctl")
HOOK = """
import builtins, sys, warnings

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"no {{name}} here")

sys.meta_path.insert(0, Blocked())
"""


def run(code, names=BLOCKED):
    """What a fresh interpreter prints in which these modules cannot be imported."""
    script = HOOK.format(names=names) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})  # threads that wait would spin
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_the_import_needs_numpy_alone_and_opens_no_file():
    """Nor scipy; and it reads nothing but modules, and writes nothing."""
    assert run("""
        import numpy
        opened = []
        sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "os.mkdir") else None)
        import refsgd
        print([path for path in opened if not path.endswith((".py", ".pyc", ".so"))
               and "__pycache__" not in path])
    """, (*BLOCKED, "scipy")) == "[]"


def test_simulator_stepper_player_and_check():
    assert run("""
        import refsgd
        from refsgd.algorithms.server.bsp import bsp
        from refsgd.testing import check
        stepper = refsgd.Stepper("bsp", workers=2, steps=2)
        stepper.step()
        print(refsgd.run("ssp", data="quadratic", steps=20).measured["updates"],
              len(refsgd.run("asp", data="quadratic", steps=5).player().html) > 1000, len(stepper.world.events) > 0,
              all(finding.held is not False for finding in check(bsp, processes=False)))
    """) == "80 True True True"


def test_a_net_trains_with_its_numpy_layers():
    """Slowly, and said once."""
    assert run("""
        import refsgd
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = refsgd.run("bsp", workers=2, steps=5, lr=0.3)
        print(result.loss < 2.2, len([w for w in said if "numba" in str(w.message)]))
    """) == "True 1"
