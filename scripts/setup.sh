#!/bin/sh
# Set up .venv with the extra named in $1 (course or dev). Run by make; says in one line what is missing.
set -eu
extra=$1
python=${PYTHON:-python3}

missing() { echo "flashlab: $1" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 ||
    missing "python3 is not installed; install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv python3-pip)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    missing "$("$python" --version) is too old; install Python 3.11 or newer, or name one: make PYTHON=python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    missing "python3 has no venv; install it (Debian, Ubuntu: apt install python3-venv python3-pip)"
command -v git >/dev/null 2>&1 || missing "git is not installed (Debian, Ubuntu: apt install git)"

.venv/bin/python -c 'import pip' 2>/dev/null || "$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# torch goes in first, so that nothing after it chooses another build.
torch=$(sed -n 's/^torch==//p' constraints.txt)
if ! .venv/bin/python -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '$torch'" 2>/dev/null; then
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo "flashlab: installing torch $torch for the GPU"
        pip install --quiet -c constraints.txt "torch==$torch"
    elif [ "$(uname -s)" = Linux ] && pip install --quiet "torch==$torch+cpu" 2>/dev/null; then
        echo "flashlab: installed the CPU build of torch $torch"
    else
        [ "$(uname -s)" = Linux ] && echo "flashlab: pip knows no CPU build of torch $torch here, so this is the CUDA build" \
            "(several GB). README, 'Without a GPU', says how to get the small one."
        pip install --quiet -c constraints.txt "torch==$torch"
    fi
fi
echo "flashlab: installing the rest (constraints.txt)"
pip install --quiet -c constraints.txt -e ".[$extra]"
touch ".venv/$extra.ready"
