from pathlib import Path

from flashlab import widgets
from flashlab.widgets import gallery

DOCS = Path(__file__).parents[2] / "docs"


def test_every_widget_has_its_paragraph_and_picture(tmp_path):
    assert set(gallery.STATES) == set(widgets.__all__) - {"link", "unlink"}
    page = (DOCS / "widgets.md").read_text()
    gallery.write(tmp_path)
    for widget in gallery.STATES:
        assert f"]({gallery.name(widget)})" in page
        shipped, fresh = ((folder / gallery.name(widget)).read_bytes() for folder in (DOCS, tmp_path))
        assert shipped[:24] == fresh[:24], f"{widget}: python -m flashlab.widgets.gallery docs"  # signature and size
