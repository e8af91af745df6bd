"""The site's style in a real browser: no line of code ends outside the page, also on a phone."""
# ruff: noqa: F811  (a fixture of the step player's tests)

from pathlib import Path

import pytest

pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'refsgd[browser]'")
from tests.display.player.test_browser import browser, pytestmark, show  # noqa: F401

STYLE = (Path(__file__).parents[3] / "docs" / "_static" / "site.css").read_text()
LINE = 'machine = refsgd.Machine(compute="lognormal(0.02,0.5)straggler(0.03,0.1,8)device(5TFLOPS,2ms)", latency=1)'


def cut_off(browser, tmp_path, style, kind, width):
    show(browser, tmp_path, f"<style>pre {{ overflow: auto; }} {style}</style>"
                            f'<div class="{kind}"><div class="highlight"><pre>{LINE}</pre></div></div>', width=width)
    return browser.execute_script("const pre = document.querySelector('pre');"
                                  "return pre.scrollWidth > pre.clientWidth")


@pytest.mark.parametrize("kind", ["cell_input", "highlight-python", "highlight-bash", "highlight-console"])
def test_code_wraps_at_any_width(browser, tmp_path, kind):
    assert cut_off(browser, tmp_path, "", kind, 400)  # without the site's style
    assert not any(cut_off(browser, tmp_path, STYLE, kind, width) for width in (320, 400, 745))
