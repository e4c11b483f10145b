"""For ``pytest --nbval notebooks``: cells are counted as in a notebook, and a slow machine gets time.

nbval runs cells without history, so that every one of them would be "cell 1" to the checker, and it waits five seconds for
output, hard coded.
"""

from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell

OUTPUT_SECONDS = 120


def _execute_and_count(self, cell_input, allow_stdin=None):
    return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


RunningKernel.execute_cell_input = _execute_and_count


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            item.output_timeout = OUTPUT_SECONDS
