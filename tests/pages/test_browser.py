"""The pages in a real browser: offline, wide and narrow, light and dark, by keyboard and for screen readers.

Screenshots of a run are kept in build/screenshots of the repository, or where LOWERDECK_SCREENSHOTS says.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.artifacts.files import write_json, write_text
from lowerdeck.comparison.comparison import compare
from lowerdeck.pages import report
from lowerdeck.pages.comparison import page as comparison_page
from lowerdeck.pages.explanation import page as explanation_page
from lowerdeck.provenance import lineage
from lowerdeck.report.build import read_build
from tests.comparison.builds_by_hand import build, share
from tests.handmade_build import write_build
from tests.handmade_plan import network
from tests.project import REPOSITORY

pytestmark = pytest.mark.slow

SCREENSHOTS = Path(os.environ.get("LOWERDECK_SCREENSHOTS", REPOSITORY / "build" / "screenshots"))
PAGES = ("compare", "explain", "report")
WIDTHS = (1400, 420)


def compared() -> str:
    """Twelve builds on two targets, of which two pairs are the same program."""
    builds = []
    for number in range(12):
        target, kept = ("ethos_u55_128", "xnnpack_cpu")[number % 2], f'["aten::op{number // 2}"]'
        metrics = dict(share("", 0.9 + number / 200, 0.85, 0.99, "delegated_accuracy").metrics)
        metrics |= {"ram_bytes": 50_000.0 + 900 * (number % 5), "program_bytes": 90_000.0 + 70 * number}
        builds.append(
            build(
                f"{number:02d}" + "ab" * 3,
                metrics,
                compiler=target,
                program_sha256=str(number),
                params={
                    "target.name": target,
                    "target.options.kept": kept,
                    "model.name": "a model's name",
                    "dataset.options.counts.hot dog": ("0.5", "9", "0.25", "10")[number % 4],
                },
                texts={"ram_unknown": "what XNNPACK packs"} if target == "xnnpack_cpu" else {},
                run_id=f"{number:02d}" + "ab" * 15,
            )
        )
    double = dataclasses.replace(builds[0], label="ffabab00", params={**builds[0].params, "target.options.kept": "[]"})
    return comparison_page.render(compare([*builds, double]), "Sweep delegation", None)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = write_build(gates={"name": "strict", "min_quantized_accuracy": 0.7, "max_program_bytes": 1000})
        write_json(Path("build/track/lineage.json"), lineage.trace(config))
        write_text(Path("build/report.html"), report.render(read_build(), has_comparison=True))
        write_text(
            Path("build/explain.html"), explanation_page.render(network(), "tiny", has_report=True, has_bundle=True)
        )
        write_text(Path("build/compare.html"), compared())
    return {name: folder / "build" / f"{name}.html" for name in PAGES}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    binaries = [shutil.which(name) for name in ("chromium", "chromedriver")]
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    if None in binaries:
        pytest.skip("needs chromium: apt-get install chromium chromium-driver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binaries[0]
    # No network at all: a page that would load something says so in the console.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(binaries[1]))
    yield driver
    driver.quit()


@pytest.fixture
def shown(browser: Any, pages: dict[str, Path]) -> Callable[..., Any]:
    """(page, width, colour scheme) -> the browser with the page."""

    def show(name: str, width: int = 1400, scheme: str = "light") -> Any:
        metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get_log("browser")
        browser.get(pages[name].as_uri())
        return browser

    return show


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_no_page_runs_past_the_edge_or_says_anything(
    shown: Callable[..., Any], name: str, width: int, scheme: str
) -> None:
    driver = shown(name, width, scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    height = min(4000, driver.execute_script("return document.documentElement.scrollHeight"))
    whole = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", whole)
    driver.save_screenshot(str(SCREENSHOTS / f"{name}_{width}_{scheme}.png"))
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    channels = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(channels) < 80) == (scheme == "dark")
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("name", PAGES)
def test_everything_that_can_be_used_has_a_name_and_can_be_reached(shown: Callable[..., Any], name: str) -> None:
    driver = shown(name)
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = ("button", "link", "combobox", "searchbox", "checkbox", "textbox", "img", "region", "navigation")
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in used and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    assert driver.execute_script("return document.querySelectorAll('h1').length") == 1
    unreachable = driver.execute_script(
        "return [...document.querySelectorAll('.scroll, .small-graph')].filter(box =>"
        " box.scrollWidth > box.clientWidth && box.tabIndex < 0 && !box.querySelector('a, button')).length"
    )
    assert unreachable == 0


def test_the_first_screen_of_compare_says_what_to_ship(shown: Callable[..., Any]) -> None:
    driver = shown("compare")
    answers = driver.execute_script(
        "return [...document.querySelectorAll('.answer')].filter(it => it.getBoundingClientRect().bottom < 1000)"
        ".map(it => it.querySelector('h3').textContent + ': ' + it.querySelector('.verdict b').textContent"
        " + ' by ' + it.querySelector('.do').textContent)"
    )
    assert answers == [
        "ethos_u55_128: ffabab00 by lowerdeck promote ffabab00",
        "xnnpack_cpu: 05ababab by lowerdeck promote 05ababab",
    ]


def visible(driver: Any) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll('.builds tr[data-row]')].filter(row => row.offsetParent)"
        ".map(row => row.cells[0].innerText.trim().slice(0, 8))"
    )
    return found


def test_targets_start_folded_and_open_by_keyboard(shown: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = shown("compare")
    assert visible(driver) == []
    first, _ = driver.find_elements(By.CSS_SELECTOR, ".group button")
    first.send_keys(Keys.ENTER)
    assert first.get_attribute("aria-expanded") == "true"
    assert len(visible(driver)) == 6
    head = driver.find_elements(By.CSS_SELECTOR, ".builds thead th.number")[-1]
    head.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    values = driver.execute_script(
        "const rows = [...document.querySelectorAll('.builds tr[data-row]')].filter(row => row.offsetParent);"
        "return rows.map(row => Number(row.cells[arguments[0].cellIndex].dataset.value))",
        head,
    )
    assert values == sorted(values)
    assert len(set(values)) > 3


def test_filters_do_what_they_say(shown: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    driver = shown("compare")
    chosen = {box.get_attribute("data-parameter"): Select(box) for box in driver.find_elements(By.TAG_NAME, "select")}
    chosen["target"].select_by_value("xnnpack_cpu")
    assert sorted(visible(driver)) == [f"{number:02d}ababab" for number in range(1, 12, 2)]
    chosen["target"].select_by_index(0)
    chosen["target.options.kept"].select_by_value('["aten::op0"]')  # that of its double, which has no row
    assert sorted(visible(driver)) == ["01ababab", "ffabab00"]
    assert driver.find_element(By.ID, "count").text == "2 of 12 builds"
    chosen["target.options.kept"].select_by_index(0)
    driver.find_element(By.ID, "find").send_keys("op3")
    assert sorted(visible(driver)) == ["06ababab", "07ababab"]


def test_a_parameter_is_sorted_by_value(shown: Callable[..., Any]) -> None:
    """0.25 stood behind 0.5: 25 and 5 were compared."""
    from selenium.webdriver.common.by import By

    driver = shown("compare")
    driver.find_element(By.ID, "find").send_keys("ab")  # all, which unfolds the targets
    (head,) = [head for head in driver.find_elements(By.CSS_SELECTOR, ".builds thead th") if "hot dog" in head.text]
    head.click()
    cells = (
        "return [...document.querySelectorAll('.builds tbody')].map("
        "body => [...body.querySelectorAll('tr[data-row]')].map(row => row.cells[arguments[0].cellIndex].textContent))"
    )
    ascending = [["0.25"] * 3 + ["0.5"] * 3, ["9"] * 3 + ["10"] * 3]
    assert driver.execute_script(cells, head) == ascending
    head.click()
    assert driver.execute_script(cells, head) == [body[::-1] for body in ascending]


def test_builds_are_found_by_their_target(shown: Callable[..., Any]) -> None:
    """It is the heading of their rows alone."""
    from selenium.webdriver.common.by import By

    driver = shown("compare")
    driver.find_element(By.ID, "find").send_keys("xnnpack_cpu op3")
    assert visible(driver) == ["07ababab"]


def test_a_key_with_a_space_filters(shown: Callable[..., Any]) -> None:
    """The script ended in a TypeError, and with it all filters."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    driver = shown("compare")
    (box,) = driver.find_elements(By.CSS_SELECTOR, 'select[data-parameter$="hot dog"]')
    assert [option.text for option in Select(box).options] == ["all", "0.25", "0.5", "9", "10"]
    Select(box).select_by_value("9")
    assert sorted(visible(driver)) == ["01ababab", "05ababab", "09ababab"]
    assert driver.get_log("browser") == []


def test_links_between_pages_lead_to_files_beside_them(shown: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By

    driver = shown("report")
    links = {link.text: link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, "nav.links a")}
    assert {Path(address).name for address in links.values()} == {"explain.html", "firmware.zip", "compare.html"}
    for address in links.values():
        assert Path(address.removeprefix("file://")).is_file()
    driver.find_element(By.LINK_TEXT, "explanation of the plan").click()
    assert driver.title == "tiny: delegation plan - Lowerdeck"
    driver.find_element(By.LINK_TEXT, "report").click()
    assert "build report" in driver.find_element(By.CSS_SELECTOR, "header").text


def test_a_cause_is_shown_in_the_graph(shown: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By

    driver = shown("explain")
    button = driver.find_element(By.CSS_SELECTOR, ".cause button")
    driver.execute_script("arguments[0].click()", button)
    assert driver.execute_script("return document.querySelectorAll('.canvas .box.match').length") > 0
    assert button.get_attribute("aria-pressed") == "true"


def test_the_report_says_first_whether_the_build_ships(shown: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By

    driver = shown("report", 420)
    verdict = driver.find_element(By.CSS_SELECTOR, ".verdict")
    assert verdict.text.startswith("Does not ship")
    assert "passed min_quantized_accuracy 0.7: 0.75 margin +7.1 %" in verdict.text
    assert "failed max_program_bytes 1000: 2048 margin -104.8 %" in verdict.text
    assert verdict.location["y"] < 1000
