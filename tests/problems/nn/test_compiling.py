"""What compiled kernels depend on: the source they are made of, and the processor."""
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

import refsgd

HERE = Path(__file__).parent
COUNT = """
from refsgd.problems.nn import kernels
if {blind}:
    kernels.Cache.GENERATORS = ()
kernels.transpose(0, 0, 0, 0, 0)
print(sum(kernels.transpose.stats.cache_hits.values()))
"""


def run(words, cwd=None, **environment):
    return subprocess.run([sys.executable, *words], cwd=cwd, env=os.environ | environment,
                          capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("blind", [False, True])
def test_the_disk_cache_notices_a_change_of_the_generated_code(tmp_path, blind):
    """A copy of the package: compiled, found again, compiled again once the intrinsics change; a blind cache
    continues to use the old code."""
    problems = Path("refsgd") / "problems"
    nn = tmp_path / problems / "nn"
    shutil.copytree(Path(refsgd.__file__).parents[1] / problems / "nn", nn,
                    ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path / problems, tmp_path / "refsgd"):
        (folder / "__init__.py").touch()

    def found():
        answer = run(["-c", COUNT.format(blind=blind)], tmp_path, PYTHONPATH=str(tmp_path),
                     NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    assert [found(), found()] == [0, 1]
    with (nn / "vector.py").open("a") as file:
        file.write("# changed\n")
    assert found() == blind


@pytest.mark.slow
def test_a_first_gradient_compiles_what_its_net_needs_and_that_once(tmp_path):
    """A plain number among the arguments of a kernel that others call is a type of its own, and would be
    another compilation."""
    answer = run(["-c", "from refsgd.problems.nn import nets; nets.build('tiny').compile()"],
                 NUMBA_CACHE_DIR=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    compiled = [path.name.split("-")[0].partition(".")[2] for path in tmp_path.rglob("*.nbc")]
    assert "product" in compiled and "normalise" not in compiled
    assert sorted(compiled) == sorted(set(compiled))


GRADIENTS = """
import hashlib
import numpy as np
from refsgd.problems.nn import nets
for name in ("mlp", "tiny", "shallow", "lenet5", "resnet18:8", "inception:8", "vgg16:8"):
    net, random = nets.build(name), np.random.default_rng(0)
    images = random.standard_normal((9, *net.input_shape)).astype(np.float32)
    loss, g = net.gradient(net.init(0), images, random.integers(0, 10, 9))
    print(name, loss, hashlib.sha256(g).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name, features, lanes",
                         [("generic", "", 4), ("haswell", "+avx,+avx2,+fma,+sse4.2,+popcnt,+bmi,+bmi2", 8)])
def test_the_kernels_are_right_on_lesser_processors(tmp_path, name, features, lanes):
    """The plain path of any x86-64, and that of processors without AVX-512, compiled for the purpose.

    Where products and sums are fused, gradients have the same bits whatever the width of a vector.
    """
    here = llvmlite.binding.get_host_cpu_features()
    if platform.machine() not in ("x86_64", "AMD64") or not all(here.get(word[1:])
                                                                for word in features.split(",") if word):
        pytest.skip(f"this processor does not run code for {name}")
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert run(["-c", "from refsgd.problems.nn.vector import LANES; print(LANES)"],
               **told).stdout.split() == [str(lanes)]
    if "+fma" in features:
        assert run(["-c", GRADIENTS], **told).stdout == run(["-c", GRADIENTS]).stdout != ""
    chosen = "test_kernels or agree_with or the_loss_of_its_gradient or layer_by_layer"
    answer = run(["-m", "pytest", "-q", "-x", "-k", chosen, str(HERE / "test_kernels.py"),
                  str(HERE / "test_nets.py")], **told)
    assert answer.returncode == 0, answer.stdout[-2000:]
