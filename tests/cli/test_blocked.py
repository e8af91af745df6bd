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

#: what Pyodide lacks: modules, processes and threads
BROWSER = """
import numpy, os, subprocess, sysconfig, threading
sysconfig.get_config_vars()  # read while the platform is still the real one
for name in ("sched_getaffinity", "posix_spawn"):
    if hasattr(os, name):
        delattr(os, name)
def refuse(*rest, **more):
    raise OSError(138, "emscripten does not support processes")
os.fork = subprocess.Popen.__init__ = refuse
def no_thread(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = no_thread
sys.platform = "emscripten"
"""
MODULES = (*BLOCKED, "_multiprocessing", "_posixshmem", "fcntl", "resource", "pwd", "grp", "termios",
           "multiprocessing_logging", "mpi4py")


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


def test_simulator_stepper_player_explorer_and_check_in_a_browser_s_python():
    """Without processes, threads and most packages: what the page on browsers promises."""
    assert run(BROWSER + """
import refsgd
from refsgd.algorithms.server.bsp import bsp
from refsgd.testing import check, explore_algorithm
small = {"data": "quadratic", "steps": 5}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    compared = refsgd.compare(["bsp", "asp"], **small)
stepper = refsgd.Stepper("ssp", staleness=0, **small)
stepper.run_until("block")
print(compared.runtime, len([w for w in said if "simulated instead" in str(w.message)]),
      "waits" in str(stepper.where()), len(refsgd.run("asp", **small).player().html) > 1000,
      "schedules" in str(explore_algorithm("ssp", workers=2, steps=2, staleness=1)),
      all(finding.held is not False for finding in check(bsp)))
""", MODULES) == "simulator 1 True True True True"


def test_a_net_trains_with_its_numpy_layers():
    """Slowly, and said once."""
    assert run("""
        import refsgd
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = refsgd.run("bsp", workers=2, steps=5, lr=0.3)
        print(result.loss < 2.2, len([w for w in said if "numba" in str(w.message)]))
    """) == "True 1"
