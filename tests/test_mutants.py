"""The mutator of benchmarks/mutants: what it changes, and that a wrong program is told from a right one."""

import json
import subprocess
import sys
import tomllib

import pytest

from benchmarks.mutants.__main__ import EQUIVALENT, FILES
from benchmarks.mutants.operators import ROOT, domain, found_in

SSP = "refsgd/algorithms/server/ssp.py"
GATE = "refsgd/algorithms/server/ssp_gate.py"


def test_a_mutant_is_one_change_that_keeps_the_lines_and_can_be_compiled():
    source, found = (ROOT / SSP).read_text(), found_in(SSP)
    assert len({mutant.name for mutant in found}) == len({mutant.text() for mutant in found}) == len(
        found) > 100
    for mutant in found:
        text = mutant.text().decode()
        compile(text, SSP, "exec")
        assert text.count("\n") == source.count("\n") and mutant.lines()[0] != mutant.lines()[1]
    assert {"comparison", "arithmetic", "constant", "negation", "and-or", "dropped", "swap", "function",
            "keyword", "variable", "counter"} <= {
        mutant.operator for mutant in found}


def test_the_listed_mistakes_are_those_of_the_programs_as_they_are():
    assert len(domain()) > 100 and {mutant.file for mutant in domain()} <= set(FILES)
    for mutant in domain():
        compile(mutant.text(), mutant.file, "exec")
    for entry in tomllib.loads(EQUIVALENT.read_text())["equivalent"]:
        lines = {line.strip() for line in (ROOT / entry["file"]).read_text().splitlines()}
        assert set(entry["old"].splitlines()) <= lines and entry["reason"], entry


@pytest.mark.slow
def test_a_wrong_slack_is_caught_and_a_change_where_no_test_looks_survives(tmp_path):
    near = [mutant for mutant in found_in(GATE) if "waiting and clock[w] <" in mutant.lines()[0]
            and mutant.operator == "comparison"]
    far = [mutant for mutant in found_in(SSP) if "Row(shard.x, shard.version, slowest" in mutant.lines()[0]
           and mutant.operator == "counter"]
    assert near and far
    names = [part for mutant in near + far for part in ("--only", mutant.name)]
    subprocess.run([sys.executable, "-m", "benchmarks.mutants", *names, "--tests",
                    "tests/programs/test_by_hand.py", "--map", tmp_path / "map.json",
                    "--out", tmp_path / "out.md"], cwd=ROOT, check=True, capture_output=True, timeout=120)
    how = {row["name"]: row["how"] for row in json.loads((tmp_path / "out.json").read_text())}
    assert how == {mutant.name: "failed" for mutant in near} | {mutant.name: "survived" for mutant in far}
