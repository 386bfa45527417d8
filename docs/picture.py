"""Writes docs/report.png, the picture of the README: the top of a report and one of its examples,
from a run's folder: ``uv run python docs/picture.py runs/continents``. It needs Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from blackbox_lb.extras.report.page import write_report

WIDTH = 900
SHOWN = """
nav, .masthead, .legend, .filter, .callout, .hero .others, .card > :is(header, p:not([class])),
main > section:not(#verdict, #examples), #examples > :is(h2, .lead), .example ~ .example, details,
footer { display: none !important; }
.hero, section { padding-top: 0.7rem; padding-bottom: 0.5rem; margin-top: 0.7rem; }
.cards, .example, .card .change { margin-top: 0; }
.hero > .short { max-width: none; }
"""
"""What the picture leaves out of the page."""


def main(run: Path) -> None:
    """Write the picture of a run."""
    picture = Path(__file__).with_name("report.png")
    page_file = write_report(run).page.resolve()
    names = ("chromium", "chromium-browser", "google-chrome")
    browsers = [path for path in map(shutil.which, names) if path is not None]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browsers[0], args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 400}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.add_style_tag(content=SHOWN)
        page.screenshot(path=picture, full_page=True)
        browser.close()
    Image.open(picture).quantize(160).save(picture, optimize=True)
    sys.stdout.write(f"wrote {picture}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
