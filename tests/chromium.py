"""Chromium for the tests of pages, without a screen."""

import contextlib
import json
import shutil

import pytest


@contextlib.contextmanager
def started():
    """The driver of a Chromium. A test is skipped where selenium, Chromium or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        pytest.skip(f"not on this machine: {' and '.join(missing)}, of Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):  # for containers, as root
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        driver.set_script_timeout(60)
        yield driver


def set_screen(driver, size, dark):
    """The size of the screen in pixels, and the scheme that the reader's system asks for."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def requests(driver):
    """The addresses that were loaded or tried since this was last asked."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
    urls = [message["params"]["request"]["url"] for message in sent]
    return [url for url in urls if not url.startswith("data:")]
