import pytest

from flashlab.course import lessons, notebook


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", lessons.LESSONS)


@pytest.fixture
def committed(name):
    """The notebook as it is committed."""
    found = notebook.load(notebook.built_path(name))
    assert found is not None, f"{name} is not built: python -m flashlab.course.build {name.split('_')[0]}"
    return found
