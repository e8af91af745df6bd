"""The scheduler's page in a real browser: moves, goals, keys, a phone, dark mode, the text for ShiViz."""
# ruff: noqa: F811  (a fixture of the step player's tests)

import html
import re

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.display.scheduler import scheduler_html
from refsgd.testing.findings import hash_of as result_of
from tests.display.player.test_scheduler import LARGE, QUICK, case, holds, polite
from tests.marks import mostly_long

pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'refsgd[browser]'")
from tests.display.player.test_browser import CONTRAST, VISIBLE, browser, press, pytestmark, show  # noqa: F401

HOME = "\ue011"  # the key, as selenium names it
WAIT = "#goals button[data-goal='1']"


@pytest.fixture(scope="module")
def ssp():
    return scheduler_html(case("ssp", staleness=0), holds, result_of, name="ssp")


def asked(browser, what):
    return browser.execute_script(f"return scheduler.{what}")


def moves(browser):
    return browser.find_elements("css selector", "#moves button")


def test_moves_are_buttons_and_keys_and_come_back(browser, tmp_path, ssp):
    show(browser, tmp_path, ssp)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [b.text.split("\n")[-1] for b in moves(browser)] == ["worker0 computes a gradient",
                                                                "worker1 computes a gradient"]
    from selenium.webdriver.common.keys import Keys

    seen = "return ['moves', 'goals', 'state', 'messages'].map((id) => document.getElementById(id).innerHTML)"
    before = browser.execute_script(seen)
    moves(browser)[1].click()
    after = browser.execute_script(seen)
    press(browser, "1", Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert asked(browser, "path()") == []
    assert browser.execute_script(seen) == before
    press(browser, Keys.ARROW_RIGHT)
    assert asked(browser, "path()") == [1] and browser.execute_script(seen) == after
    press(browser, Keys.HOME, "2", "9")  # there is no ninth move
    assert asked(browser, "path()") == [1] and browser.get_log("browser") == []


def test_an_embedded_scheduler_says_how_its_keys_work(browser, tmp_path, ssp):
    show(browser, tmp_path, f'<!doctype html><title>docs</title><body><button>of the page</button><iframe width="900" height="700" srcdoc="{html.escape(ssp)}"></iframe>')
    browser.find_element("tag name", "button").click()
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    assert browser.execute_script(VISIBLE)
    browser.find_element("id", "now").click()
    assert not browser.execute_script(VISIBLE)
    press(browser, "1")
    assert asked(browser, "path()") == [0]
    browser.switch_to.default_content()


def test_a_goal_is_reached_with_help_and_named(browser, tmp_path, ssp):
    show(browser, tmp_path, ssp)
    for left in range(5, 0, -1):
        button = browser.find_element("css selector", WAIT)
        assert button.text == (f"help: 1 of {left} moves" if left > 1 else "help: the last move")
        button.click()
    said = browser.find_element("id", "now").text
    assert "Goal reached: Make worker0 wait" in said and "holds the answer to Push#0 back" in said
    assert "reached in 5 moves, fewest: 5" in browser.find_element("id", "goals").text
    assert "impossible in all" in browser.find_element("id", "goals").text
    while moves(browser):  # what has been reached is not called impossible later
        press(browser, "1")
    reached = browser.find_elements("css selector", "#goals li")[1].text
    assert "reached in 5 moves" in reached and "no longer possible" not in reached
    press(browser, *["\ue012"] * (len(asked(browser, "path()")) - 5))
    assert browser.find_element("css selector", ".line.gate .waits").text == "w0 waits"
    assert browser.execute_script("return document.activeElement.tagName") == "BUTTON"


def test_any_walk_ends_without_an_error(browser, tmp_path):
    show(browser, tmp_path, scheduler_html(polite, lambda run: None, lambda run: "", name="polite"))
    walk = """
      const said = [];
      for (let walk = 0; walk < 20; walk++) {
        scheduler.acts.restart();
        for (let n; (n = scheduler.graph.states[scheduler.here()][3].length);) scheduler.choose((walk * 7 + said.length) % n);
        said.push(document.querySelector("#moves .over").textContent.slice(0, 8));
      }
      return said;
    """
    assert set(browser.execute_script(walk)) <= {"the run ", "deadlock"} and browser.get_log("browser") == []


def shiviz_blocks(text):
    """Event, host and clock of each event, by the expression that ShiViz reads by default."""
    blocks = re.findall(r"(?P<event>.*)\n(?P<host>\S*) (?P<clock>{.*})\n", text)
    assert "".join(f"{e}\n{h} {c}\n" for e, h, c in blocks) == text
    return blocks


def holds_the_page(browser, tmp_path, name):
    """A worker dies and the run is followed to its end, with keys only, on a phone."""
    deaths = 0 if name == "approximate" else 1  # as on its page of the site: too many states
    html = scheduler_html(case(name), holds, result_of, name=name, deaths=deaths)
    assert len(html.encode()) <= 1_500_000
    show(browser, tmp_path, html, width=400)
    for who in (False, True)[:1 + deaths]:
        press(browser, "1", "1")
        said = [b.text.split("\n")[-1] for b in moves(browser)]
        if who and any(text.endswith(" dies") for text in said):
            press(browser, str([text.endswith(" dies") for text in said].index(True) + 1))
            assert "has died" in browser.find_element("id", "state").text
        while moves(browser):
            press(browser, *["1"] * 5)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        assert browser.find_element("css selector", "#moves .over").text
        events = asked(browser, "shiviz()")
        assert len(shiviz_blocks(events)) == browser.execute_script(
            "return document.querySelectorAll('#scroll circle').length")
        press(browser, HOME)
        assert asked(browser, "path()") == []
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", QUICK)
def test_a_death_and_an_end_by_keys_on_a_phone(browser, tmp_path, name):
    holds_the_page(browser, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_long(
    sorted(set(CATALOGUE) - {*QUICK, *LARGE, "sequential"}), "allreduce", "easgd", "dpsgd", "backup-workers", "gpipe", "hogwild"))
def test_the_pages_of_the_other_algorithms_too(browser, tmp_path, name):
    holds_the_page(browser, tmp_path, name)


def test_the_text_for_shiviz_has_vector_clocks(browser, tmp_path, ssp):
    show(browser, tmp_path, ssp)
    press(browser, "1", "1", "2", "2")
    text = asked(browser, "shiviz()")
    blocks = shiviz_blocks(text)
    assert ("sends Push#0 to server0", "worker0", '{"worker0":2}') in blocks
    assert ("takes Push#0 of worker0", "server0", '{"server0":1,"worker0":2}') in blocks
    link = browser.find_element("id", "export")
    assert link.get_attribute("download") and link.get_attribute("href").startswith("data:text/plain")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_both_colour_schemes(browser, tmp_path, ssp, scheme):
    show(browser, tmp_path, ssp, width=400, color_scheme=scheme)
    for _ in range(5):
        browser.find_element("css selector", WAIT).click()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    ratio, what = browser.execute_script(CONTRAST)
    assert ratio >= 4.5, what


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_of_the_page_around_it_replaces_that_of_the_system(browser, tmp_path, ssp, system):
    show(browser, tmp_path, ssp, color_scheme=system)
    for theme, paper in (("dark", "rgb(20, 23, 27)"), ("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        seen = browser.execute_async_script(
            "window.postMessage({theme: arguments[0]}, '*');"
            "setTimeout(() => arguments[1](getComputedStyle(document.documentElement).backgroundColor), 50);", theme)
        assert seen == paper
        ratio, what = browser.execute_script(CONTRAST)
        assert ratio >= 4.5, what
