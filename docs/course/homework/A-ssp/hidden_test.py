"""Hidden tests of homework A: HOMEWORK=FILE pytest hidden_test.py"""

import importlib.util
import os
import sys

from refsgd.testing import check


def submitted(name):
    """A name of the submitted file: HOMEWORK, or homework.py."""
    path = os.environ.get("HOMEWORK", "homework.py")
    spec = importlib.util.spec_from_file_location("homework", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["homework"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_it_is_ssp():
    findings = check(submitted("homework"), algorithm="ssp", processes=False, max_runs=60)
    lost = [str(finding) for finding in findings if finding.held is False]
    assert not lost, "\n".join(lost)
