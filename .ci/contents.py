"""Compare the sdist and the wheel in a folder with the files that git has: `python .ci/contents.py dist`."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: what nothing misses until it is used
PLAYER = {f"refsgd/display/player/player.{kind}" for kind in ("css", "html", "js")}
NEEDED = {"refsgd/py.typed", "refsgd/problems/data/digits.csv.gz", "refsgd/problems/data/digits.md",
          "refsgd/experiment/race/digits.json", "refsgd/experiment/race/digits-by-label.json", *PLAYER}
#: what tests read besides the package
TESTED = {"pyproject.toml", "README.md", "CITATION.cff", "tests/golden/golden.json", "docs/conf.py"}

(sdist,), (wheel,) = (list(Path(sys.argv[1]).glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
tracked = set(listed.split("\0")) - {""}
package = {name for name in tracked if name.startswith("refsgd/")}
with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as installed:
    in_source = {name.partition("/")[2] for name in source.getnames()}
    in_wheel = {name for name in installed.namelist() if ".dist-info/" not in name}
    about = {name.partition(".dist-info/")[2] for name in installed.namelist()} - {""}

wrong = [f"{name}: {place}" for place, names in {
    "tracked, but not in the sdist": tracked - in_source,
    "in the sdist, but not tracked": in_source - tracked - {"PKG-INFO"},
    "a file of the package, but not in the wheel": package - in_wheel,
    "in the wheel, but not a file of the package": in_wheel - package,
    "needed, but not in the wheel": NEEDED - in_wheel,
    "needed by tests, but not in the sdist": TESTED - in_source,
    "missing in the wheel's metadata": {"METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE"} - about,
}.items() for name in sorted(names)]
print(f"{sdist.name}: {len(in_source)} files; {wheel.name}: {len(in_wheel)} files")
sys.exit("\n".join(wrong) or 0)
