"""What the documentation says is what the records say."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

from flashlab.bench import cases, plots, records

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("performance", ROOT / "scripts" / "performance.py")
performance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(performance)


@pytest.fixture(scope="module")
def found():
    return performance.loaded()


def test_there_is_a_record_of_every_kind(found):
    assert list(found) == list(cases.KINDS)


def test_the_page_is_in_step(found):
    assert performance.PAGE.read_text() == performance.page(found), "run python scripts/performance.py"


def test_the_readme_is_in_step(found):
    text = performance.README.read_text()
    assert text == performance.readme(text, found), "run python scripts/performance.py"


@pytest.mark.parametrize("kind", cases.KINDS)
def test_the_plots_are_of_these_records(kind, found):
    with Image.open(performance.picture(kind)) as picture:
        assert picture.text[plots.STAMP] == plots.stamp(found[kind]), "run python scripts/performance.py"


def test_every_shape_where_a_rival_is_faster_is_on_the_page(found):
    text = performance.PAGE.read_text()
    for kind in performance.SUMMED:
        for mine, theirs in performance.figures.beaten(found[kind]):
            row = f"| {mine.case.label} | {mine.mode} | {theirs.title} |"
            assert row in text


def test_a_readme_without_a_block_is_refused(found):
    with pytest.raises(ValueError, match="no block"):
        performance.readme("nothing here", found)


@pytest.mark.parametrize("name", records.shipped())
def test_a_record_draws_itself(name, tmp_path):
    plots.draw(records.load(name), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 600
