"""What a lesson's cells call. All but ``trace`` print plain text and return None, so that a notebook's outputs are the report."""

from flashlab.course.check import check
from flashlab.course.hint import hint, solution
from flashlab.course.predict import predict
from flashlab.course.progress import progress
from flashlab.course.quiz import quiz
from flashlab.course.start import start
from flashlab.course.trace import trace

__all__ = ["check", "hint", "predict", "progress", "quiz", "solution", "start", "trace"]
