"""A real browser for the tests: Chromium (or Chrome) driven by Selenium, if the machine offers one."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

import needs

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The second row keeps a browser that is alone on its machine from looking for its maker's servers.
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--disable-quic"),
)


def found(names: tuple[str, ...], variable: str) -> str | None:
    """The first of these programs that is there; a variable of the environment overrules."""
    return next(
        (
            path
            for name in (os.environ.get(variable), *names)
            if name and (path := shutil.which(name))
        ),
        None,
    )


def start() -> Any:
    """A browser, or a skip that says what is missing."""
    needs.library("selenium")
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    browser = found(BROWSERS, "CHROME")
    driver = found(("chromedriver",), "CHROMEDRIVER")
    if browser is None or driver is None:
        pytest.skip(needs.BROWSER_REASON)
    options = Options()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        return webdriver.Chrome(service=Service(driver), options=options)
    except WebDriverException as error:
        pytest.skip(f"{browser} does not start here: {str(error.msg).splitlines()[0]}")
