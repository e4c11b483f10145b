"""Exercises whose answer is a Triton kernel: shown with its kernel, graded by its launcher, and harmless when wrong."""

import pytest

from flashlab.course import author, lessons, sources
from flashlab.course.grade import grade
from flashlab.course.report import text

SOFTMAX = lessons.exercise("04.row_softmax")
SUMS = lessons.exercise("04.row_sums")
FIRST_BLANK = "inside = ...  # your line: which of the lanes stand for an element of this row"


@pytest.fixture
def reader(written):
    """What a reader wrote in a cell that holds kernel and launcher."""

    def make(source, name):
        return written(f"import triton\nimport triton.language as tl\n{source}", name)

    return make


def said(exercise, answer):
    return " ".join(text(grade(exercise, answer, lessons.lesson("04").exercises), exercise.keep, 0).split())


def test_kernel_and_launcher_are_shown_together_under_the_readers_name():
    shown = sources.solution(SOFTMAX)
    assert shown.startswith("@triton.jit\ndef row_softmax_kernel(p_x, p_y")
    assert "\n\n\ndef row_softmax(x):" in shown and "row_softmax_kernel[(m,)](" in shown and "solution" not in shown
    assert sources.spec(SOFTMAX).startswith("def row_softmax_spec(x):")


def test_the_kernel_counts_when_an_answer_is_compared_with_the_stub(reader):
    stub = sources.stub(SUMS)
    assert author.untouched(SUMS, reader(stub, "row_sums"))
    begun = stub.replace(FIRST_BLANK, "inside = cols < n")
    assert begun != stub and not author.untouched(SUMS, reader(begun, "row_sums"))


def test_a_line_that_is_left_open_is_found_in_the_kernel(reader):
    stub = sources.stub(SUMS)
    begun = stub.replace(FIRST_BLANK, "inside = cols < n")
    answer = reader(begun, "row_sums")
    line = next(i for i, line in enumerate(begun.splitlines(), 6) if "b_x = ..." in line)
    assert f"A `...` still stands at answer_0.py:{line}." in said(SUMS, answer)


def test_an_error_in_a_kernel_is_told_with_the_line_of_the_kernel(reader):
    wrong = sources.solution(SUMS).replace("inside = cols < n", "inside = cols < width")
    line = next(i for i, line in enumerate(wrong.splitlines(), 6) if "inside = cols < width" in line)
    assert f"NameError: name 'width' is not defined (answer_0.py:{line})" in said(SUMS, reader(wrong, "row_sums"))


def test_the_kernel_itself_is_not_graded(reader):
    kernel = reader(sources.solution(SUMS), "row_sums_kernel")
    assert 'this is a kernel: pass the function that launches it, check("04.row_sums", row_sums)' in said(SUMS, kernel)


def test_an_answer_without_a_kernel_does_not_pass(reader):
    answer = reader("def row_sums(x):\n    return torch.einsum('ij->i', x)", "row_sums")
    report = grade(SUMS, answer)
    assert [line.ok for line in report.lines] == [True, True, True, False]
    assert report.lines[-1].detail == "5 rows of 33: no Triton kernel was launched"


def test_another_way_to_the_answer_passes(reader):
    other = sources.solution(SUMS).replace("mask=inside, other=0.0)", "mask=inside, other=7.0)").replace(
        "tl.sum(b_x, axis=0)", "tl.sum(tl.where(inside, b_x, 0.0), axis=0)"
    )
    assert grade(SUMS, reader(other, "row_sums")).done


def test_a_wild_store_does_no_harm(reader):
    wild = sources.solution(SUMS).replace("tl.store(p_y + row,", "tl.store(p_y + row + 10**7,")
    report = grade(SUMS, reader(wild, "row_sums"))
    assert report.passed == 0
    assert "stores element 10000000 of y, which has 5" in report.lines[-1].detail
