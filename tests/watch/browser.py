"""A real browser for the tests: Chromium (or Chrome) driven by Selenium, if the machine offers one."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


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
    pytest.importorskip("selenium", reason="Selenium is not installed; it is in the extra `test`")
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    browser = found(BROWSERS, "CHROME")
    driver = found(("chromedriver",), "CHROMEDRIVER")
    if browser is None or driver is None:
        missing = "no Chromium or Chrome" if browser is None else "no chromedriver"
        pytest.skip(f"{missing} was found on this machine (set CHROME, CHROMEDRIVER)")
    options = Options()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        return webdriver.Chrome(service=Service(driver), options=options)
    except WebDriverException as error:
        pytest.skip(f"{browser} does not start here: {str(error.msg).splitlines()[0]}")
