"""The site as a reader meets it: ten pages in Chromium, wide and narrow, light and dark, and the search."""

import functools
import http.server
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

import chromium
import pytest

ROOT = pathlib.Path(__file__).parents[1]
PARTS = {  # a plain day looks at one of them
    "first": ["", "tutorials/getting_started/", "tutorials/the_model/"],
    "learning": ["journeys/classify/", "notebooks/translate/", "gallery/"],
    "looking up": ["how_to/generation/", "how_to/parts_of_your_own/", "reference/layers/", "reference/options/"],
}
SCREENS = [((width, 900), dark) for width in (1280, 390) for dark in (False, True)]
ANSWERS = {  # what a reader types -> the page and the section that answer, which the search names first
    "padding": ("how_to/text/", "padding"),
    "LoRA": ("how_to/fine_tuning/", "lora"),
    "KV cache": ("how_to/generation/", "the-kv-cache-and-a-smaller-one"),
    "class weights": ("how_to/training/", "class-weights"),
}
pytestmark = pytest.mark.slow


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site, or of the one that is in the folder KERAS_TXF_SITE."""
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}, of the extra docs")
    folder = os.environ.get("KERAS_TXF_SITE") or build(tmp_path_factory.mktemp("site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def build(folder):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder], cwd=ROOT, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.fixture(scope="module")
def browser(site):
    with chromium.started() as driver:
        yield driver


@functools.cache
def status(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def open_page(browser, url, size, dark):
    """As on a first visit: the site remembers the scheme."""
    chromium.set_screen(browser, size, dark)
    browser.get(url)
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


@pytest.mark.parametrize("part", PARTS)
def test_pages_fit_the_screen_and_their_links_lead_somewhere(browser, site, part):
    for page in PARTS[part]:
        for size, dark in SCREENS:
            chromium.requests(browser), browser.get_log("browser")
            open_page(browser, site + page, size, dark)
            where = f"/{page}, {size[0]} wide, {'dark' if dark else 'light'}"
            scheme = browser.execute_script("return document.body.dataset.mdColorScheme")
            assert scheme == ("slate" if dark else "default"), where
            wide = browser.execute_script(TOO_WIDE)
            assert not wide, f"{where}: wider than the screen: {wide}"
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), where
            severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
            assert not severe, f"{where}: {severe}"
            elsewhere = [url for url in chromium.requests(browser) if not url.startswith(site)]
            assert not elsewhere, f"{where}: requests to other hosts: {elsewhere}"
        urls = browser.execute_script("return [...document.querySelectorAll('a[href]')].map(a => a.href)")
        urls += browser.execute_script("return [...document.images].map(image => image.src)")
        inside = {url.partition("#")[0] for url in urls if url.startswith(site)}
        assert len(inside) > 20, f"/{page} has {len(inside)} links"
        assert not {url: status(url) for url in inside if status(url) != 200}, f"/{page}"


# What stands out of the screen on the right, and is not in a box that scrolls.
TOO_WIDE = """
const scrolls = node => node && node !== document.body
    && (["auto", "scroll"].includes(getComputedStyle(node).overflowX) || scrolls(node.parentElement))
return [...document.querySelectorAll(".md-content *")]
    .filter(node => node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node))
    .map(node => node.outerHTML.slice(0, 200)).slice(0, 3)
"""


def test_the_search_finds_the_pages_that_answer(browser, site):
    for words, (page, section) in ANSWERS.items():
        assert search(browser, site, words) == [page, f"{page}#{section}"], words


def search(browser, site, words):
    """The first result, a page, and the best of its sections, as the site lists them for a reader."""
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(browser, site, (1280, 900), dark=False)
    box = browser.find_element("css selector", "input[name=query]")
    box.click()
    box.send_keys(words)
    query = urllib.parse.urlencode({"h": words.lower()})  # the words that the section highlights

    def listed(_):
        links = "return [...document.querySelectorAll('.md-search-result__item:first-child a')].map(a => a.href)"
        found = browser.execute_script(links)
        return found if len(found) > 1 and query in found[1].lower() else None

    found = WebDriverWait(browser, 60).until(listed)
    return [re.sub(r"\?[^#]*", "", url).removeprefix(site) for url in found[:2]]
