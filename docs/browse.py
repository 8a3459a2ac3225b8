"""Opens the built pages in headless Chromium: errors, missing files, pages wider than the screen.

    pip install playwright          # and Chromium, such as Debian's package `chromium`
    python docs/browse.py           # every page of site/
    python docs/browse.py --shots DIR index.html equations.html

Each page is opened at the widths of a desktop and of a phone, in light and in dark colours. Nothing
is loaded from the network: every request that does not go to the disk is an error.
"""

import argparse
import itertools
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).parents[1] / "site"
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"


def faults_of(page: Page, name: str) -> list[str]:
    """What is wrong with one page."""
    found: list[str] = []
    page.on("console", lambda m: found.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda request: found.append(f"missing {request.url}"))

    def local(route):
        url = urlparse(route.request.url)
        if url.scheme in ("http", "https"):
            found.append(f"asks the network for {route.request.url}")
            route.abort()
        else:
            if url.scheme == "file" and not Path(unquote(url.path)).exists():
                found.append(f"no file {url.path}")
            route.continue_()

    page.route("**/*", local)
    page.goto((SITE / name).as_uri(), wait_until="load", timeout=120_000)
    found += [f"broken image {src}" for src in page.evaluate(BROKEN)]
    for formula in page.query_selector_all(".katex-error"):
        found.append(f"formula: {formula.get_attribute('title')}")
    if page.query_selector(".arithmatex:not(:has(.katex))"):
        found.append("a formula was not drawn")
    if (more := page.evaluate(WIDER)) > 0:
        found.append(f"{more} pixels wider than the screen")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="of site/, such as index.html (all)")
    parser.add_argument("--shots", type=Path, help="folder for screenshots (none)")
    parser.add_argument("--whole", action="store_true", help="screenshots of whole pages")
    options = parser.parse_args()
    pages = options.pages or sorted(
        # The page for what a server does not find has links from the server's root.
        str(path.relative_to(SITE))
        for path in SITE.rglob("*.html")
        if path.name != "404.html"
    )
    count = 0
    with sync_playwright() as tools:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for (width, size), colours in itertools.product(WIDTHS.items(), ("light", "dark")):
            for name in pages:
                view = {"width": size[0], "height": size[1]}
                context = browser.new_context(viewport=view, color_scheme=colours)
                page = context.new_page()
                for fault in dict.fromkeys(faults_of(page, name)):
                    count += 1
                    print(f"{name} ({width}, {colours}): {fault}")
                if options.shots:
                    options.shots.mkdir(parents=True, exist_ok=True)
                    stem = name.removesuffix(".html").replace("/", "-")
                    shot = options.shots / f"{stem}-{width}-{colours}.png"
                    page.screenshot(path=shot, full_page=options.whole)
                context.close()
        browser.close()
    print(f"{len(pages)} pages, {count} faults")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
