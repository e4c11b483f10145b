"""A real JupyterLab and a real browser. FLASHLAB_REQUIRE_BROWSER turns a missing browser from a skip into a failure."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTINGS = {  # nothing pops up, nothing is asked of the network
    "@jupyterlab/apputils-extension/notification": {"checkForUpdates": False, "doNotDisturbMode": True, "fetchNews": "false"},
}
PATIENCE_S = 60


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium from the system's packages, driven by playwright."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        found, why = None, str(error)
    else:
        why = f"none of {', '.join(BROWSERS)} is installed"
    if found is None:
        if os.environ.get("FLASHLAB_REQUIRE_BROWSER"):
            pytest.fail(f"no browser: {why}")
        pytest.skip(f"no browser: {why}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab on 127.0.0.1 with a token: its notebook folder, its address and its token. Touches no user's files."""
    home = tmp_path_factory.mktemp("lab")
    folder, settings = home / "notebooks", home / "settings"
    folder.mkdir()
    for plugin, values in SETTINGS.items():
        path = settings / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "JUPYTER"))}
    environment = inherited | {
        "JUPYTER_TOKEN": token, "JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    log = home / "log.txt"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, cwd=home, stdout=out, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"{address}/api/status?token={token}", server, log)
        yield folder, address, token
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        server.kill()


def _wait_for(url, server, log):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")
