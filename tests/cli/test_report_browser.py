"""The HTML reports in a real browser, headless Chromium: they load without errors, everything one can press works, and every number shown is
one of the JSON files. STRATA_SCREENSHOTS=FOLDER keeps a picture of every page."""
import json
import os
import re
import shutil

import pytest

from test_report import folders, page  # noqa: F401 (folders is a fixture)
from support import strata

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    pytest.skip("python3-selenium is not installed: the reports are not tried in a browser", allow_module_level=True)


@pytest.fixture(scope="module")
def browser():
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("chromium-driver is not installed: the reports are not tried in a browser")
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        browser = webdriver.Chrome(service=Service(driver), options=options)
    except WebDriverException as error:
        pytest.skip(f"Chromium does not start here: {error}")
    yield browser
    browser.quit()


def open_page(browser, path, width=1200):
    browser.set_window_size(width, 900)
    browser.get(path.as_uri())
    return path


def quiet(browser):
    """Nothing was logged to the console."""
    assert browser.get_log("browser") == []


def picture(browser, name):
    """A picture of the whole page, for people."""
    folder = os.environ.get("STRATA_SCREENSHOTS")
    if folder:
        os.makedirs(folder, exist_ok=True)
        height = browser.execute_script("return document.documentElement.scrollHeight")
        browser.set_window_size(browser.get_window_size()["width"], min(height + 150, 12000))
        browser.save_screenshot(f"{folder}/{name}.png")


PAGES = {"inspect-hkt": "run/inspect.html", "inspect-hsa": "compare/hsa-seed1/inspect.html", "train": "run/report.html",
         "compare": "compare/report.html", "eval": "eval.html", "bench": "bench.html", "inject": "inject/inject.html"}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1200, 360])
def test_loads_without_errors_and_fits(browser, folders, name, width):
    open_page(browser, folders / PAGES[name], width)
    quiet(browser)
    assert browser.find_elements(By.CSS_SELECTOR, ".problem") == []
    sections = browser.find_elements(By.CSS_SELECTOR, "main section")
    assert len(sections) == len(browser.find_elements(By.CSS_SELECTOR, "nav a")) >= 3
    assert browser.execute_script("return Object.keys(Chart.instances).length") > 0
    # Wide tables scroll inside their frames; the page itself does not.
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    picture(browser, f"{name}-{width}")


def numbers_of(json_value):
    """Every number of a JSON value."""
    if isinstance(json_value, bool):
        return
    if isinstance(json_value, (int, float)):
        yield json_value
    elif isinstance(json_value, (list, dict)):
        for child in json_value.values() if isinstance(json_value, dict) else json_value:
            yield from numbers_of(child)


def is_rounding_of(text, value):
    """Whether text is value, rounded to the digits it has."""
    shown = float(text)
    mantissa, _, exponent = text.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - (len(mantissa.partition(".")[2])))
    return abs(shown - value) <= 0.500001 * unit


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_in_the_json(browser, folders, name):
    """The page's data equals the files (test_report.py); here, what is shown equals the page's data."""
    data = page(open_page(browser, folders / PAGES[name]))
    # Open every "Numbers" table, so that those are compared as well.
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    cells = browser.execute_script("""
      const cells = [...document.querySelectorAll("[data-path]")].map(e => [e.textContent, e.dataset.path, e.dataset.scale ?? "1"]);
      const strays = [...document.querySelectorAll("td, .ramp")].filter(e => /[0-9]/.test(e.textContent) && !e.querySelector("[data-path], .place"))
        .map(e => e.textContent);
      return [cells, strays];""")
    assert len(cells[0]) > 20
    for text, path, scale in cells[0]:
        value = data
        for key in json.loads(path):
            value = value[key]
        assert is_rounding_of(text, value * float(scale)), f"{text} is shown for {path}, which is {value}"
    # Cells with digits that are no numbers of the data are words of it: names, messages.
    words = json.dumps(data, ensure_ascii=False)
    for text in cells[1]:
        assert all(part in words for part in re.split(r" − ", text.strip('"'))), text
    # What the charts draw.
    known = set()
    for number in numbers_of(data):
        known.update((float(number), number * 100.0))
    drawn = browser.execute_script("""
      return Object.values(Chart.instances).flatMap(chart => chart.data.datasets.flatMap(dataset => dataset.data.map(point =>
        point === null ? null : typeof point === "number" ? point : point.value !== undefined ? point.value : point.y)));""")
    assert len(drawn) > 10
    for value in drawn:
        assert value is None or value in known, f"{value} is drawn and is not in the JSON"


def test_verdicts_are_in_the_json(browser, folders):
    data = page(open_page(browser, folders / PAGES["compare"]))
    text = browser.find_element(By.CSS_SELECTOR, "#summary .verdicts").text
    pairs = list(numbers_of(data["results"]["pairs"]))
    for number in re.findall(r"(?<![\w.])[+-]?\d+\.\d+", text.replace("95%", "")):
        assert any(is_rounding_of(number, sign * value) for value in pairs for sign in (1, -1)), number


def test_sorting(browser, folders):
    open_page(browser, folders / PAGES["inspect-hkt"])
    table = browser.find_element(By.CSS_SELECTOR, "#error table")
    titles = table.find_elements(By.CSS_SELECTOR, "th button")
    column = [button.text for button in titles].index("KL")
    values = lambda: [float(row.find_elements(By.TAG_NAME, "td")[column].text) for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")]
    before = values()
    titles[column].send_keys(Keys.ENTER)  # by keyboard
    assert values() == sorted(before) and len(set(before)) > 1
    assert table.find_elements(By.TAG_NAME, "th")[column].get_attribute("aria-sort") == "ascending"
    titles[column].click()
    assert values() == sorted(before, reverse=True)
    quiet(browser)


def test_legend_toggles_series(browser, folders):
    open_page(browser, folders / PAGES["inspect-hkt"])
    button = browser.find_element(By.CSS_SELECTOR, "#weights .legend button")
    visible = lambda: browser.execute_script("return Chart.getChart(document.querySelector('#weights canvas')).isDatasetVisible(0)")
    assert visible() and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert not visible() and button.get_attribute("aria-pressed") == "false"
    browser.find_element(By.ID, "theme").click()  # stays hidden when colours change
    assert not visible()
    browser.find_element(By.CSS_SELECTOR, "#weights .legend button").click()
    assert visible()
    quiet(browser)


def test_legends_show_the_lines_as_they_are_drawn(browser, folders):
    open_page(browser, folders / PAGES["compare"])
    drawn = browser.execute_script("""
      const figure = [...document.querySelectorAll("#curves figure")].find(one => one.querySelector(".legend path"));
      return Chart.getChart(figure.querySelector("canvas")).data.datasets.map((dataset, i) => {
        const line = figure.querySelectorAll(".legend .swatch path")[i];
        return [dataset.borderDash.join(" "), line.getAttribute("stroke-dasharray"), dataset.borderColor, line.getAttribute("stroke")];
      });""")
    assert len(drawn) == 4 and len({dash for dash, _, _, _ in drawn}) == 2
    assert all(dash == shown and colour == ink for dash, shown, colour, ink in drawn)


def test_comparisons_show_the_validation_scores(browser, folders):
    data = page(open_page(browser, folders / PAGES["compare"]))
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, "#summary th")]
    rows = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in browser.find_elements(By.CSS_SELECTOR, "#summary tbody tr")]
    column = [head.split()[0] for head in heads].index("validation")
    for row, attention in zip(rows, data["results"]["attentions"], strict=True):
        assert is_rounding_of(row[column], attention["valid_mean"])


def test_many_attentions_are_shown_a_few_at_a_time(browser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["flat", "flat:window=4", "flat:window=5", "flat:window=6", "hkt", "hkt:levels=2", "strata"]
    strata("compare", "--task", "recall", "--length", "40", "--pairs", "2", "--questions", "2", "--train-rows", "320", "--valid-rows", "16", "--test-rows",
           "64", "--layers", "1", "--model-size", "16", "--heads", "2", "--positions", "rotary", "--steps", "20", "--batch", "16", "--learning-rate", "1e-2",
           "--seeds", "2", "--attentions", *names, "--folder", "many", "--quiet")
    data = page(open_page(browser, tmp_path / "many/report.html"))
    texts = lambda selector: [one.text for one in browser.find_elements(By.CSS_SELECTOR, selector)]
    assert len(texts("#summary .verdicts li")) == 7, "six pairs with the first attention, and how many there are without it"
    pairs = lambda: [cells[0].text for cells in (row.find_elements(By.TAG_NAME, "td") for row in browser.find_elements(By.CSS_SELECTOR, "#significance tbody tr"))]
    assert pairs() == [f"{name} − flat" for name in names[1:]]
    browser.find_element(By.CSS_SELECTOR, "#significance summary").click()
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    assert len(pairs()) == 21 and "strata − hkt" in pairs()
    # The curves of the first attention and of a chosen one.
    assert set(texts("#curves figure:first-child .legend li")) == {f"{name}-seed{seed}" for name in ("flat", "flat-window=4") for seed in (1, 2)}
    browser.find_element(By.CSS_SELECTOR, "#curves option:last-child").click()
    assert set(texts("#curves figure:first-child .legend li")) == {f"{name}-seed{seed}" for name in ("flat", "strata") for seed in (1, 2)}
    # Recall by distance, means over seeds.
    assert texts("#parts thead th")[1:] == ["4-7", "8-15", "16-31", "32-39"]
    first = browser.find_elements(By.CSS_SELECTOR, "#parts tbody tr")[0].find_elements(By.TAG_NAME, "td")
    parts = data["results"]["attentions"][0]["parts"]
    assert any(part["accuracy"] > 0 for part in parts)
    assert all(is_rounding_of(cell.text, 100 * part["accuracy"]) for cell, part in zip(first[1:], parts, strict=True))
    quiet(browser)
    picture(browser, "compare-many")


def test_colours(browser, folders):
    open_page(browser, folders / PAGES["compare"])
    ground = lambda: browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    button = browser.find_element(By.ID, "theme")
    seen = [ground()]
    for _ in range(3):
        button.click()
        seen.append(ground())
    assert len(set(seen)) == 2 and seen[0] == seen[3]
    quiet(browser)


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    return sum(w * (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts))


@pytest.mark.parametrize("clicks", [1, 2])
def test_contrast(browser, folders, clicks):
    """Text at least 4.5 to 1 (WCAG AA), lines of charts 3 to 1."""
    open_page(browser, folders / PAGES["inspect-hkt"])
    for _ in range(clicks):
        browser.find_element(By.ID, "theme").click()
    ratio = lambda a, b: (max(luminance(a), luminance(b)) + 0.05) / (min(luminance(a), luminance(b)) + 0.05)
    colour = lambda selector, what: browser.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).{what}")
    ground = colour("body", "backgroundColor")
    for selector in ("body", "figcaption small", "nav a", "footer", "caption"):
        assert ratio(colour(selector, "color"), ground) >= 4.5, selector
    for swatch in browser.find_elements(By.CSS_SELECTOR, "#weights .swatch, #gaussianity .swatch"):
        assert ratio(swatch.value_of_css_property("border-top-color"), ground) >= 3


def test_choosing_a_head_draws_it(browser, folders):
    data = page(open_page(browser, folders / PAGES["inspect-hkt"]))
    options = browser.find_elements(By.CSS_SELECTOR, "#psd select option")
    assert [option.text for option in options] == [f"layer {l}, head {h}" for l in range(2) for h in range(2)]
    before = browser.execute_script("return Object.keys(Chart.instances).length")
    options[3].click()
    drawn = browser.execute_script("return Chart.getChart(document.querySelector('#psd canvas')).data.datasets[0].data.map(p => p.y)")
    assert drawn == data["inspect"]["layers"][1]["heads"][1]["psd"]["levels"][0]["eigenvalues"]
    assert browser.execute_script("return Object.keys(Chart.instances).length") == before  # the old ones are gone
    quiet(browser)


def test_heat_map(browser, folders):
    data = page(open_page(browser, folders / PAGES["inspect-hkt"]))
    canvas = browser.find_element(By.CSS_SELECTOR, "#examples canvas")
    scale = lambda: browser.execute_script("const s = Chart.getChart(document.querySelector('#examples canvas')).scales; return [s.x.min, s.x.max, s.y.min, s.y.max]")
    press = lambda text: next(b for b in browser.find_elements(By.CSS_SELECTOR, "#examples .zoom button") if b.text == text).click()
    whole = scale()
    press("Zoom in")
    near = scale()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    press("Whole")
    assert scale() == whole
    canvas.send_keys(Keys.ARROW_RIGHT)
    canvas.send_keys(Keys.ARROW_DOWN)
    reading = browser.find_element(By.CSS_SELECTOR, "#examples .reading").text
    assert reading.startswith("query 1 ") and is_rounding_of(reading.split()[-1], data["inspect"]["examples"][0]["layers"][0][0]["attention"][1][1])
    assert browser.execute_script("return Chart.getChart(document.querySelector('#examples canvas')).tooltip.opacity") == 1
    canvas.send_keys("+")
    assert scale() != whole
    canvas.send_keys("0")
    assert scale() == whole
    # Another view, head and row.
    selects = browser.find_elements(By.CSS_SELECTOR, "#examples .sticky select")
    for select in selects:
        select.find_elements(By.TAG_NAME, "option")[-1].click()
    cells = browser.execute_script("return Chart.getChart(document.querySelector('#examples canvas')).data.datasets[0].data.map(p => p.value)")
    expected = data["inspect"]["examples"][-1]["layers"][-1][-1]["levels"][-1]
    assert cells == [value for row in expected for value in row]
    quiet(browser)


def test_gaussianity_of_all_heads_at_an_epoch(browser, folders):
    data = page(open_page(browser, folders / PAGES["train"]))
    lines = [line for line in data["metrics"] if line["kind"] == "gaussianity"]
    part = "#gaussianity-over-training"
    titles = [caption.text for caption in browser.find_elements(By.CSS_SELECTOR, f"{part} figcaption")]
    assert sum(title.startswith("Nominal p-value of the") for title in titles) == 2
    drawn = lambda: browser.execute_script(
        f"const all = document.querySelectorAll('{part} canvas'); return Chart.getChart(all[all.length - 1]).data.datasets[0].data.map(p => p.value)")
    ratios = lambda line: [level["kurtosis_ratio"] for layer in line["layers"] for head in layer for level in head if level["tested"]]
    assert len(lines) > 1 and drawn() == ratios(lines[-1])
    browser.find_elements(By.CSS_SELECTOR, f"{part} select")[-1].find_elements(By.TAG_NAME, "option")[0].click()
    assert drawn() == ratios(lines[0]) != ratios(lines[-1])
    quiet(browser)


def test_rotary_models(browser, folders, tmp_path):
    """Where no bilinear form stands behind the scores, the page says so and shows the scores alone."""
    shutil.copytree(folders / "run", tmp_path / "run")
    data = json.load(open(tmp_path / "run/inspect.json"))
    for layer in data["layers"]:
        for head in layer["heads"]:
            head["psd"] = {"problem": "does not apply: rotary positions", "scores": head["psd"]["scores"]}
            head["symmetry"] = [{key: level[key] for key in ("directional_share", "orthogonality", "upsampling")} for level in head["symmetry"]]
    (tmp_path / "run/inspect.json").write_text(json.dumps(data))
    strata("report", tmp_path / "run")
    open_page(browser, tmp_path / "run/inspect.html")
    assert "does not apply: rotary positions" in browser.find_element(By.ID, "psd").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#psd canvas")) == 1  # the spectrum of the scores
    assert browser.find_elements(By.CSS_SELECTOR, ".problem") == []
    quiet(browser)


def test_tree_over_its_text(browser, folders):
    data = page(open_page(browser, folders / PAGES["inspect-hsa"]))
    example = data["inspect"]["examples"][0]
    tokens = browser.find_elements(By.CSS_SELECTOR, "#examples .token")
    assert [token.text.strip() for token in tokens] == example["tokens"]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#examples .family")) == len(example["tree"]["child_begin"]) - 1
    tokens[1].click()
    row = example["layers"][0][0]["attention"][1]
    assert all(is_rounding_of(token.get_attribute("title"), value) for token, value in zip(tokens, row))
    quiet(browser)


def test_damaged_pages_still_open(browser, folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    data = json.load(open(tmp_path / "run/inspect.json"))
    del data["layers"][0]["heads"][1]["psd"]
    data["layers"][1]["heads"][0] = {"head": 0, "problem": "its queries of level 0 are not finite"}
    data["layers"][0]["heads"][0]["gaussianity"]["scores"][0]["quantiles"] = 7
    data["examples"][0]["layers"] = None
    data["problems"] = ["layer 1, head 0: its queries of level 0 are not finite"]
    (tmp_path / "run/inspect.json").write_text(json.dumps(data))
    strata("report", tmp_path / "run")
    open_page(browser, tmp_path / "run/inspect.html")
    quiet(browser)
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "layer 1, head 0: its queries of level 0 are not finite" in text
    assert "This part cannot be shown" in text and "There is no picture" in text
    assert browser.find_elements(By.CSS_SELECTOR, "#weights canvas") and browser.find_elements(By.CSS_SELECTOR, "#error table")
    # What claims to be long, or to point far away, does not keep the page busy.
    data["layers"][0]["heads"][0]["weights"] = {"length": 10**9}
    data["examples"][0]["tree"] = {"child_begin": [0, 10**15], "children": [0]}
    (tmp_path / "run/inspect.json").write_text(json.dumps(data))
    strata("report", tmp_path / "run")
    open_page(browser, tmp_path / "run/inspect.html")
    assert "weights is not a list" in browser.find_element(By.TAG_NAME, "main").text
    quiet(browser)
    (tmp_path / "run/inspect.json").write_text("{")
    strata("report", tmp_path / "run")
    open_page(browser, tmp_path / "run/inspect.html")
    assert "is damaged" in browser.find_element(By.TAG_NAME, "main").text
    quiet(browser)
