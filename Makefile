# make course   set up .venv and open the course in JupyterLab
# make test     set up .venv and run every test, the notebooks included
# make notebooks LESSONS="02 03"   rebuild notebooks/*.ipynb from notebooks/source/*.py

.PHONY: course test lint notebooks clean
export OMP_NUM_THREADS ?= 1
PYTHON ?= python3
export PYTHON
LAB ?=
JOBS ?= 2

course: .venv/course.ready
	@.venv/bin/python -m flashlab.course.workbook
	@.venv/bin/python -m jupyterlab --notebook-dir=workbook $(LAB)

test: .venv/dev.ready lint
	@.venv/bin/python -m pytest tests -n $(JOBS) --dist=loadfile

lint: .venv/dev.ready
	@.venv/bin/python -m ruff check .

notebooks: .venv/dev.ready
	@.venv/bin/python -m flashlab.course.build $(LESSONS)

.venv/course.ready: pyproject.toml constraints.txt scripts/setup.sh
	@sh scripts/setup.sh course

.venv/dev.ready: pyproject.toml constraints.txt scripts/setup.sh
	@sh scripts/setup.sh dev
	@touch .venv/course.ready

clean:
	rm -rf .venv
