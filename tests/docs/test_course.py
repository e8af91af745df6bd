"""The course kit: its links lead somewhere, its guide covers the course, and its commands do what it says."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import refsgd
from tests.docs.test_words import EVERYWHERE, found
from tests.marks import mostly_long

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
PAGES = sorted(COURSE.glob("*.md"))
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.md"))
HOMEWORK = sorted(path.name for path in (COURSE / "homework").iterdir())


def targets(text):
    """The pages and files that a page of the course kit leads to, as paths from ``docs/course``."""
    named = re.findall(r"\{(?:doc|download)\}`[^`<]*<([^>`]+)>`", text) + re.findall(r"\{(?:doc|download)\}`([^`<]+)`", text)
    return named + re.findall(r"\]\((?!https?:|#)([^)#\s]+)\)", text)


def leads_somewhere(target):
    """Whether a target exists, where the site puts tutorials beside the other pages."""
    place = (COURSE / target).resolve()
    if place.parent == ROOT / "docs" / "tutorials":
        place = ROOT / "tutorials" / place.name
    return place.exists() or place.with_name(place.name + ".md").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_of_the_course_kit_lead_somewhere(page):
    found = targets(page.read_text())
    assert found and not [target for target in found if not leads_somewhere(target)]


def test_a_dead_link_of_the_course_kit_is_found():
    assert targets("{doc}`a <../start>`, {doc}`plans`, {download}`b <c.py>` and [d](e.md)") == ["../start", "c.py", "plans", "e.md"]
    assert leads_somewhere("../start") and leads_somewhere("../tutorials/07-allreduce")
    assert not leads_somewhere("../tutorials/07-all-reduce") and not leads_somewhere("../stop")


def test_the_guide_has_each_tutorial_with_its_minutes_and_each_homework():
    guide = (COURSE / "teaching.md").read_text()
    said = dict(re.findall(r"^### \{doc\}`\d+\. [^`<]*<\.\./tutorials/([^>]+)>` \((\d+) min\)\n\n\| struggle", guide, re.M))
    assert said == {path.stem: re.search(r"\*\*Time\*\*: about (\d+) minutes", path.read_text())[1] for path in TUTORIALS}
    rows = re.findall(r"^\| ([A-Z]), [^|]* \| ([^|]*) \| ([^|]*) min \|", guide, re.M)
    assert [letter for letter, _, _ in rows] == [folder[0] for folder in HOMEWORK]
    for (_, student, _), folder in zip(rows, HOMEWORK):
        assert f"Time: {student.replace('min', 'minutes')}." in (COURSE / "homework" / folder / "README.md").read_text()


def test_the_plans_name_only_homework_that_exists():
    plans = (COURSE / "plans.md").read_text()
    named = set(re.findall(r"[Hh]omework ([A-Z])\b", plans))
    assert named and named <= {folder[0] for folder in HOMEWORK}
    for path in TUTORIALS:
        assert plans.count(f"<../tutorials/{path.stem}>") >= 2, path.stem  # in the list, and in some plan


def loaded(name):
    """A module of the course kit, by the name of its file."""
    spec = importlib.util.spec_from_file_location(f"course_{name}", COURSE / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DECKS = loaded("decks")
SOURCES = sorted((COURSE / "decks").glob("*.md"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_a_deck_has_titles_notes_and_code_that_compiles(path):
    """One message on each slide: a title, at most one figure, notes; a figure has a text alternative."""
    deck = DECKS.parse(path)
    assert 12 <= len(deck.slides) <= 18
    for slide in deck.slides:
        assert slide.notes and len(slide.title) <= 70, slide.title
        for code in slide.code:
            compile(code, slide.title, "exec")
            assert ("plt.subplots(" in code) == bool(DECKS.ALT.match(code)), slide.title
        assert sum("plt.subplots(" in code for code in slide.code) <= 1, slide.title
    assert deck.slides[-1].title == "Take home" and sum("plt.subplots(" in code for s in deck.slides for code in s.code) >= 5
    assert found(path.read_text(), EVERYWHERE) == []


def test_there_are_six_decks_and_their_table_names_them():
    assert DECKS.sources() == SOURCES and len(SOURCES) == 6
    rows = re.findall(r"^\| (\d), \w+ \|", (COURSE / "slides.md").read_text(), re.M)
    assert rows == [path.stem[0] for path in SOURCES]


def slide(*code):
    """The source of a slide with one block that is executed."""
    return "\n".join(["# T", "", "```python", *code, "```", "", "Notes: n"])


@pytest.mark.parametrize(("text", "said"), [
    ("text\n", "a slide begins with 'text'"),
    (slide("import matplotlib.pyplot as plt", "plt.subplots()"), "without a text alternative"),
    (slide("# alt: a", "import matplotlib.pyplot as plt", "plt.subplots()[1].set_title('t', fontsize=8)"), "letters of 13 pixels; expected at least 20"),
    (slide(r"print('```\n' + 13 * 'x = 1\n' + '```')"), "13 lines of code, up to 5 characters wide; expected at most 12 lines of 93"),
    (slide("print('    ' + 30 * 'w = 1')"), "1 lines of code, up to 150 characters wide"),
])
def test_a_deck_with_a_flaw_is_refused(tmp_path, text, said):
    pytest.importorskip("mdit_py_plugins", reason="slides are Markdown with formulas: pip install '.[docs]'")
    (tmp_path / "0-deck.md").write_text(text)
    with pytest.raises(ValueError, match=said):
        DECKS.render(DECKS.parse(tmp_path / "0-deck.md"))


def test_letters_of_the_template_can_be_read_from_the_last_row():
    """At 1280 pixels one unit is 12.8 pixels; a line of code as wide as is allowed fits between the margins."""
    sizes = [float(units) for units in re.findall(r"font-size: calc\((?:var\(--letters\) \* )?([\d.]+) \* var\(--u\)\)", DECKS.TEMPLATE.read_text())]
    assert len(sizes) >= 5 and min(sizes) * 12.8 >= DECKS.SMALLEST
    assert DECKS.COLUMNS * 0.602 * 1.57 + 2 * 0.9 <= 90 == DECKS.WIDTH / 12.8


@pytest.fixture(scope="module", params=mostly_long(SOURCES, *SOURCES[:2]), ids=lambda p: p.stem)
def built(request, tmp_path_factory):
    """A deck, and the files that it became."""
    pytest.importorskip("mdit_py_plugins", reason="slides are Markdown with formulas: pip install '.[docs]'")
    return DECKS.parse(request.param), DECKS.build(request.param, tmp_path_factory.mktemp("decks"))


@pytest.mark.slow
def test_a_deck_is_built_whole(built):
    """One page without other files, a section for each slide, a figure for each block that plots; one page of PDF for each slide."""
    deck, (page, *pdf) = built
    text = page.read_text()
    assert text.count("<section ") == len(deck.slides)
    assert text.count("<img ") == sum("plt.subplots(" in code for slide in deck.slides for code in slide.code)
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    if pdf:
        assert len(re.findall(rb"/Type\s*/Page\b", pdf[0].read_bytes())) == len(deck.slides)


#: slides whose text or figure reaches their footer, or is too wide
TOO_LARGE = """
return [...document.querySelectorAll(".slide")].filter((slide) => {
  const foot = slide.querySelector("footer").getBoundingClientRect().top;
  return [...slide.children].some((e) => e.tagName !== "FOOTER" && (e.getBoundingClientRect().bottom > foot || e.scrollWidth > e.clientWidth + 1));
}).map((slide) => slide.innerText.split("\\n")[0]);
"""


#: texts, and figures with texts, that are too small to be read from the last row
TOO_SMALL = """
const found = [];
for (const slide of document.querySelectorAll(".slide")) {
  for (const img of slide.querySelectorAll("img")) if (img.dataset.letters * img.getBoundingClientRect().width < 20) found.push(img.alt);
  const texts = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement, scale = e.closest("svg") ? e.getScreenCTM().a : 1;
    if (texts.currentNode.data.trim() && parseFloat(getComputedStyle(e).fontSize) * scale < 20) found.push(texts.currentNode.data);
  }
}
return found;
"""


@pytest.mark.slow
def test_slides_fit_their_frame_and_a_phone(built, tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'refsgd[browser]'")
    if not (DECKS.chromium() and shutil.which("chromedriver")):
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = DECKS.chromium()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(flag)
    # Chromium leaves files of its own there; its socket allows no long path
    there = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("t"))}
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver"), env=there))
    try:
        for width, height in ((1280, 720), (390, 844)):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", dict(width=width, height=height, deviceScaleFactor=1, mobile=width < 700))
            browser.get(built[1][0].as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert width < 700 or browser.execute_script(TOO_LARGE) == browser.execute_script(TOO_SMALL) == []
            browser.execute_script("document.querySelector('h2').style.fontSize = '200px'")
            assert width < 700 or len(browser.execute_script(TOO_LARGE)) == 1  # the check notices what is too large
            browser.execute_script("document.querySelector('footer').style.fontSize = '19px'; document.querySelector('img').style.width = '80%'")
            assert width < 700 or len(browser.execute_script(TOO_SMALL)) == 2  # and what is too small
    finally:
        browser.quit()


HANDOUT, SUBMIT = loaded("handout"), loaded("submit")
FOLDERS = [COURSE / "homework" / name for name in HOMEWORK]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_handout_has_what_students_need_and_no_answer(folder):
    text, made = HANDOUT.render(folder), HANDOUT.read(folder)
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    assert "{{" not in text and not re.search(r'(?:src|href)="', text)
    for needed in (made.title, made.time, "Due", "python submit.py", *made.commands):
        assert needed in said, needed
    assert f"{sum(points for points, _ in made.points)} points" in said and len(made.points) >= 3
    answers = re.findall(r"^\| \d+ \| question [^|]+\| (.{20})", (folder / "rubric.md").read_text(), re.M)
    assert len(answers) == len(made.points) - 1 and not [answer for answer in answers if answer in said]
    assert found(said, EVERYWHERE) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_the_script_of_a_homework_asks_for_what_is_graded(folder, tmp_path, monkeypatch):
    """The solution has all names, and is packed; for homework A the script is the one of the repository."""
    namespace = {"__name__": "submit"}
    exec(HANDOUT.submission(folder), namespace)
    assert namespace["CHECK"] == SUBMIT.CHECK * (folder.name == "A-ssp") and namespace["VERSION"] == refsgd.__version__
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "solution.py", "homework.py")
    assert namespace["source"]() == (folder / "solution.py").read_bytes() and namespace["NAMES"]
    if not namespace["CHECK"]:
        namespace["main"](["--name", "Ada", "--id", "17"])
        assert zipfile.is_zipfile("submission.zip")


def test_a_homework_is_packed_with_the_points_that_the_grader_gives(tmp_path):
    assert HANDOUT.submission(FOLDERS[0]) == HANDOUT.SUBMIT.read_text()
    shutil.copy(FOLDERS[0] / "solution.py", tmp_path / "homework.py")
    (tmp_path / "answers.txt").write_text("Several.\n")
    done = subprocess.run([sys.executable, HANDOUT.SUBMIT], input="Ada\n17\n", cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.stdout.endswith("Upload submission.zip of Ada (17): 20 of 20 points.\n"), done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / "submission.zip") as packed:
        about = json.loads(packed.read("submission.json"))
        assert about["sha256"] == hashlib.sha256(packed.read("homework.py")).hexdigest()
        assert (about["name"], about["id"], about["seen"]) == ("Ada", "17", "20 of 20 points") and "answers.txt" in packed.namelist()


@pytest.mark.parametrize(("name", "text", "version", "said"), [
    ("skeleton.py", "", None, "there is no homework.py"),
    ("homework.py", "def homework(:", None, "cannot be imported: SyntaxError"),
    ("homework.py", "import numpyy", None, "cannot be imported: ModuleNotFoundError"),
    ("homework.py", "exit()", None, "cannot be imported: SystemExit"),
    ("homework.py", "def server(): pass", None, "does not define homework"),
    ("homework.py", "homework = 1", "9.9", "the homework is graded with 9.9"),
    ("homework.py", "from refsgd.algorithms.server.ssp import ssp as homework", None, "it gets no points: homework.py:1 imports"),
])
def test_a_file_that_cannot_be_graded_is_not_packed(name, text, version, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SUBMIT, "VERSION", version or refsgd.__version__)
    Path(name).write_text(text)
    Path("submission.zip").write_text("of an earlier file")
    with pytest.raises(SystemExit, match=said):
        SUBMIT.main(["--name", "Ada", "--id", "17"])
    assert not Path("submission.zip").exists()


@pytest.mark.slow
@pytest.mark.skipif(not DECKS.chromium(), reason="no Chromium")
def test_a_handout_is_one_or_two_pages(tmp_path):
    files = HANDOUT.build(max(FOLDERS, key=lambda folder: len((folder / "README.md").read_text())), tmp_path)
    assert [path.name for path in files] == ["handout.pdf", "handout.html", "submit.py", "skeleton.py"]
    assert len(re.findall(rb"/Type\s*/Page\b", files[0].read_bytes())) <= 2


def exam():
    """The text of the questions and of the answers by number, and the functions that compute their numbers."""
    questions = dict(re.findall(r"^\*\*(\d+)\.\*\* (.*)$", (COURSE / "exam.md").read_text(), re.M))
    answers = dict(re.findall(r"^:::\{dropdown\} (\d+)\. [^\n]*\n(.*?)\n:::$", (COURSE / "exam-answers.md").read_text(), re.M | re.S))
    return questions, answers, loaded("exam_numbers").NUMBERS


def test_each_exam_question_has_a_level_minutes_and_an_answer():
    questions, answers, _ = exam()
    assert list(questions) == list(answers) == [str(n) for n in range(1, len(questions) + 1)] and len(questions) >= 30
    found = [re.match(r"\((know|apply|analyse), (\d+) min\) ", text) for text in questions.values()]
    assert all(found) and {m[1] for m in found} == {"know", "apply", "analyse"}
    assert f"{len(questions)} questions, {sum(int(m[2]) for m in found)} minutes" in (COURSE / "exam.md").read_text()
    assert f"{len(questions)} questions" in (COURSE / "index.md").read_text()


def test_numbers_of_the_exam_answers_are_those_that_the_library_computes():
    _, answers, numbers = exam()
    printed = {int(n): tuple(re.findall(r"\*\*(.+?)\*\*", text)) for n, text in answers.items()}
    assert {n: said for n, said in printed.items() if said} == {n: compute() for n, compute in numbers.items()}
    assert len(numbers) > 20


@pytest.mark.slow
def test_homework_a_is_set_up_with_the_commands_as_printed(tmp_path):
    """All of them but the installation, in a copy of the folder; and the marks are those that are printed."""
    section = (COURSE / "teaching.md").read_text().split("## Homework A in twenty minutes")[1].split("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)
    printed = re.search(r"^```text\n(.*?)^```", section, re.M | re.S)[1]
    assert "pip install" in blocks[0] and len(blocks) == 5
    for name in ("docs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(["bash", "-euc", "\n".join(blocks[1:])], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and done.stdout.endswith(printed), done.stdout + done.stderr
    reports = tmp_path / "course-a" / "reports"
    assert all((reports / f"{name}.html").stat().st_size > 1000 for name in ("ada", "bert", "cleo"))


def recipe(title, language):
    """The first block of this language in a section of the page on grading."""
    text = (ROOT / "docs" / "howto" / "course.md").read_text(encoding="utf-8").split(f"### {title}")[1]
    return re.search(rf"^```{language}\n(.*?)^```", text, re.M | re.S)[1]


@pytest.mark.slow
def test_the_recipe_of_moodle_prints_the_mark_and_what_was_lost(tmp_path):
    shutil.copy(COURSE / "homework" / "A-ssp" / "skeleton.py", tmp_path / "homework.py")
    (tmp_path / "vpl_evaluate.sh").write_text(recipe("Moodle", "bash"))
    there = os.environ | {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    subprocess.run(["bash", "vpl_evaluate.sh"], cwd=tmp_path, check=True, env=there)
    done = subprocess.run(["bash", "vpl_execution"], cwd=tmp_path, capture_output=True, text=True, env=there)
    assert re.search(r"^Comment :=>> .+: .+", done.stdout, re.M), done.stderr
    assert 0 <= int(re.fullmatch(r"Grade :=>> (\d+)", done.stdout.splitlines()[-1])[1]) < 50


def test_the_recipe_of_canvas_makes_a_table(tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "grades.csv").write_text("submission,points,of,by hand,failed,why\nada,20,20,3.5,,\nbert,3,20,,file,no\n")
    done = subprocess.run([sys.executable, "-c", recipe("Canvas", "python")], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Student,ID,SIS Login ID,Section,Homework A (1)", ",,ada,,23.5", ",,bert,,3.0"]
