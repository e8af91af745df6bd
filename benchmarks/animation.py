"""Ten seconds of the step player as a picture for the README: ``python -m benchmarks.animation``.

It steps through SSP with three workers of different speeds in a browser without a window, until the server has
held a worker back and let it go, and writes ``docs/images/player.gif``.  Needs Chromium, selenium and Pillow.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import refsgd

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "player.gif"
SIZE = 1000, 860  #: of the window, in pixels
BEFORE = 10  #: events that nothing is seen of
FRAMES, SECONDS = 32, 0.3
COLOURS, WIDTH = 128, 760


def page(folder: Path) -> Path:
    """The player of a small run."""
    machine = refsgd.Machine(compute="fixed(0.02)", latency=0.001, speeds=(1, 0.8, 0.4))
    result = refsgd.run("ssp", data="quadratic", workers=3, steps=4, staleness=1, runtime="simulator", machine=machine)
    path = folder / "player.html"
    refsgd.player(result, path)
    return path


def frames(path: Path) -> list[Any]:
    """Pictures of the page, one event apart."""
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    options = webdriver.ChromeOptions()
    for said in ("--headless=new", "--no-sandbox", f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(said)
    browser, found = webdriver.Chrome(options=options), []
    try:
        browser.get(path.as_uri())
        body = browser.find_element(By.TAG_NAME, "body")
        for _ in range(BEFORE):
            body.send_keys(Keys.ARROW_RIGHT)
        for _ in range(FRAMES):
            whole = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
            found.append(whole.resize((WIDTH, whole.height * WIDTH // whole.width), Image.Resampling.LANCZOS))
            body.send_keys(Keys.ARROW_RIGHT)
    finally:
        browser.quit()
    return found


def main() -> None:
    """Write the animation."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = frames(page(Path(folder)))
    palette = pictures[-1].quantize(COLOURS, method=1)  # which covers small areas, too
    first, *others = (picture.quantize(palette=palette, dither=0) for picture in pictures)
    first.save(OUT, save_all=True, append_images=others, duration=int(1000 * SECONDS), loop=0, optimize=True)
    print(f"{OUT.name}: {len(pictures)} frames, {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
