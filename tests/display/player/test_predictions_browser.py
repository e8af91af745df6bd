"""What follows a *Predict* question in a real browser: locked, unlocked by an answer, whole on paper."""
# ruff: noqa: F811  (a fixture of the step player's tests)

from pathlib import Path

import pytest

pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'refsgd[browser]'")
from tests.display.player.test_browser import browser, pytestmark, show  # noqa: F401

STATIC = Path(__file__).parents[3] / "docs" / "_static"
PAGE = f"""<html data-theme="light"><link rel="stylesheet" href="{STATIC.as_uri()}/site.css"><script src="{STATIC.as_uri()}/predict.js"></script>
<section><h2>A</h2><blockquote><p><strong>Predict.</strong> How long?</p></blockquote>
<p id="first">20 ms</p><blockquote><p>Only a quotation.</p></blockquote>
<blockquote><p><strong>Predict.</strong> And now?</p></blockquote><p id="second">40 ms</p>
<section><h3>B</h3><p id="after">Next.</p></section></section></html>"""


def seen(browser):
    return [name for name in ("first", "second", "after") if browser.find_element("id", name).is_displayed()]


def test_an_answer_unlocks_and_nothing_is_hidden_on_paper(browser, tmp_path):
    show(browser, tmp_path, PAGE)
    assert seen(browser) == ["after"]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert seen(browser) == ["first", "second", "after"]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    first, second = browser.find_elements("css selector", "form.prediction")
    first.find_element("tag name", "button").click()
    assert seen(browser) == ["after"] and "a guess is enough" in first.text
    first.find_element("tag name", "textarea").send_keys("20 ms")
    first.find_element("tag name", "button").click()
    assert seen(browser) == ["first", "after"]
    second.find_element("tag name", "textarea").send_keys("40 ms")
    browser.switch_to.active_element.send_keys("\t")
    browser.switch_to.active_element.send_keys("\n")  # keyboard alone
    assert seen(browser) == ["first", "second", "after"]
    assert browser.get_log("browser") == []


def test_without_javascript_everything_shows(browser, tmp_path):
    show(browser, tmp_path, PAGE.replace("<script", "<template").replace("</script>", "</template>"))
    assert seen(browser) == ["first", "second", "after"]
