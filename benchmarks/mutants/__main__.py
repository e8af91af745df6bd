"""How many wrong algorithms the tests catch: ``python -m benchmarks.mutants``.

Every file of refsgd/algorithms and refsgd/collectives is changed in one place at a time (`operators`, and the
mistakes of domain.toml), and the tests that execute this place are run until one fails.  A mutant that no
test notices survives.  equivalent.toml lists, with reasons, those whose behaviour is the original's in
everything that can be observed.  The score is caught / (tried - equivalent); a run over all files writes it
to benchmarks/results.

``--only refsgd/algorithms/server/asp.py:52:counter`` tries one again, ``--file ssp`` those of a file,
``--all`` every one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from benchmarks.mutants.operators import FILES, ROOT, Mutant, domain, found_in, sample
from benchmarks.mutants.trials import Trials

RESULTS = ROOT / "benchmarks" / "results"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
TESTS = ["tests/papers", "tests/programs", "tests/properties", "tests/collectives", "tests/agreement",
         "tests/exploration", "tests/conformance",
         "tests/interactions", "tests/theory", "tests/algorithms/test_catalogue.py", "tests/runtimes/test_simulator.py",
         "tests/docs/test_doctests.py", "tests/cli/test_mistakes.py",
         "tests/runtimes/test_deaths.py"]


def chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants that were asked for."""
    found = {file: found_in(file) for file in FILES if arguments.file in file}
    own = [mutant for mutant in domain() if arguments.file in mutant.file]
    everything = own + [mutant for mutants in found.values() for mutant in mutants]
    if arguments.only:
        return [mutant for mutant in everything if mutant.name in arguments.only]
    return everything if arguments.all else own + sample(found, arguments.number, arguments.seed)


def report(rows: list[dict[str, str]], reasons: dict[tuple[str, ...], str]) -> str:
    """The score, what survived, and what is equivalent."""
    tried = [row for row in rows if row["how"] != "not importable"]
    survived = [row for row in tried if row["how"] == "survived"]
    equal = [row for row in survived if key(row) in reasons]
    caught = len(tried) - len(survived)
    lines = [
        f"{len(tried)} mutants tried, {caught} caught, {len(equal)} equivalent, {len(survived) - len(equal)} "
        "survived:",
             f"{caught / max(1, len(tried) - len(equal)):.1%} of those that are not equivalent are caught.",
             "", "## Survivors", ""]
    for title, some in (("", [row for row in survived if row not in equal]), ("## Equivalent", equal)):
        lines += [title, ""] * bool(title)
        for row in some:
            lines += [f"* `{row['name']}`" + (f": {reasons[key(row)]}" if key(row) in reasons else ""), "",
                      "  ```diff"]
            lines += [f"  - {line}" for line in row["old"].splitlines()] + [
                f"  + {line}" for line in row["new"].splitlines()] + ["  ```"]
        lines += [""]
    return "\n".join(lines)


def key(row: dict[str, str]) -> tuple[str, ...]:
    """By which a mutant stands in equivalent.toml: no line numbers, which move."""
    return row["file"], row["old"], row["new"]


def main() -> None:
    """Try, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=400,
                        help="mutants in the sample, beside those of domain.toml")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--all", action="store_true", help="no sample")
    parser.add_argument("--file", default="", help="part of a file's path")
    parser.add_argument("--only", action="append", help="a mutant, by its name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120, help="of tests for one mutant, at most")
    parser.add_argument("--map", type=Path, default=ROOT / "build" / "mutants.json",
                        help="where to keep which test executes what")
    parser.add_argument("--out", type=Path,
                        help="where to write results; by default benchmarks/results for a sample of all "
                             "files")
    parser.add_argument("--again", action="store_true",
                        help="try the survivors of the written results again, and keep the others as they "
                             "are")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    arguments = parser.parse_args()
    mutants, rows, kept = chosen(arguments), list[dict[str, str]](), list[dict[str, str]]()
    out = arguments.out or (None if arguments.only or arguments.file else RESULTS / "mutants.md")
    if arguments.again and out:
        before = json.loads(out.with_suffix(".json").read_text())
        kept = [row for row in before if row["how"] != "survived"]
        mutants = [mutant for mutant in mutants if (mutant.file, *mutant.lines()) not in set(map(key, kept))]
    reasons = {key(entry): entry["reason"] for entry in tomllib.loads(EQUIVALENT.read_text())["equivalent"]}

    def tell(mutant: Mutant, test: str, how: str) -> None:
        row = {"name": mutant.name,
               "file": mutant.file} | dict(zip(("old", "new"), mutant.lines(), strict=True)) | {
                   "how": how, "test": test}
        rows.append(row)
        known = key(row) in reasons
        wrong = "" if not known or how == "survived" else ", though listed as equivalent"
        print(f"{len(rows)}/{len(mutants)} {mutant.name}: {how}{wrong} ({test})", flush=True)
        if how == "survived" and not known:
            print("".join(f"    {sign} {line}\n" for sign, text in (("-", row["old"]), ("+", row["new"]))
                          for line in text.splitlines()), end="", flush=True)

    settings.register_profile("mutants", max_examples=25, deadline=None, derandomize=True, database=None,
                              suppress_health_check=list(HealthCheck),
                              phases=[Phase.explicit, Phase.generate])
    arguments.map.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HYPOTHESIS_PROFILE": "mutants", "PYTEST_DEBUG_TEMPROOT": folder, "TMPDIR": folder}
        # a fork has no threads but its own
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        tempfile.tempdir = None
        code = pytest.main(["-q", "-s", "-n", "0", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p",
                            "no:cacheprovider", "--rootdir", str(ROOT), *arguments.tests],
                           plugins=[Trials(mutants, arguments.jobs, arguments.seconds, arguments.map,
                                           Path(folder), tell)])
    if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED) or len(rows) < len(mutants):
        sys.exit(f"pytest ended with {code} after {len(rows)} of {len(mutants)} mutants")
    rows = sorted(kept + rows, key=lambda row: (row["file"], int(row["name"].split(":")[1]), row["name"]))
    text = report(rows, reasons)
    print("\n" + text)
    if out:
        out.write_text(
            f"# Mutants\n\n`python -m benchmarks.mutants --number {arguments.number} --seed "
            f"{arguments.seed}`: " + text)
        out.with_suffix(".json").write_text("[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
