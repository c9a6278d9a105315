"""The page of examples/serve in a headless Chromium: an exported policy balances the pole there.

Run ``npm install onnxruntime-web`` in examples/serve, and install chromium and chromedriver; else it is skipped.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import gymnasium as gym
import numpy as np
import pytest
import torch

from algorithms.ppo import PPOCatalog, PPOModule
from rlmodule import Policy

PAGE = Path(__file__).resolve().parents[2] / "examples" / "serve" / "cartpole.html"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
RUNTIME = PAGE.parent / "node_modules" / "onnxruntime-web"
MISSING = [name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if found is None]
MISSING += [] if RUNTIME.is_dir() else ["node_modules/onnxruntime-web in examples/serve"]
STEPS, MOST_SECONDS = 400, 120


def balancer() -> Policy:
    """A policy that pushes towards where the pole falls, by weights that are set by hand."""
    env = gym.make("CartPole-v1")
    spaces: Any = env.observation_space, env.action_space
    settings = {"fcnet_hiddens": [1], "vf_share_layers": False}
    module = PPOModule(
        observation_space=spaces[0], action_space=spaces[1], model_config=settings, catalog_class=PPOCatalog
    )
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.zero_()
            if name.endswith("actor_encoder.linears.0.weight"):
                weight.copy_(torch.tensor([[0.02, 0.1, 1.0, 0.5]]))
            elif name.endswith("pi_head.linears.0.weight"):
                weight.copy_(torch.tensor([[-1.0], [1.0]]))
    return Policy(module)


def test_the_policy_balances_in_gymnasium() -> None:
    policy, env = balancer(), gym.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    for step in range(500):
        action, _ = policy.act(obs)
        obs, _, terminated, truncated, _ = env.step(action)
        assert not terminated
        assert truncated == (step == 499)


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of the page, next to a policy and the runtime."""
    balancer().export(tmp_path / "policy.onnx")
    shutil.copy(PAGE, tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "onnxruntime-web").symlink_to(RUNTIME)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{PAGE.name}"
        server.shutdown()


class Browser:
    """A Chromium, driven over the WebDriver protocol."""

    def __init__(self, profile: Path) -> None:
        self._driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._driver.stdout is not None
        line = next(line for line in self._driver.stdout if "on port" in line and "successfully" in line)
        self._url = f"http://127.0.0.1:{line.rpartition('port ')[2].strip().rstrip('.')}/session"
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        asked = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._url += f"/{self.post('', asked)['sessionId']}"

    def post(self, path: str, content: Any) -> Any:
        request = Request(self._url + path, json.dumps(content).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script: str) -> Any:
        return self.post("/execute/sync", {"script": f"return {script}", "args": []})

    def stop(self) -> None:
        try:
            urlopen(Request(self._url, method="DELETE"), timeout=30).close()
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()  # type: ignore[union-attr]


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
@pytest.mark.filterwarnings("ignore:.*")  # of onnx and of torch's exporters
def test_an_exported_policy_balances_the_pole_in_a_browser(page: str, tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    try:
        browser.post("/url", {"url": f"{page}#seed=7&fps=0"})
        last = time.monotonic() + MOST_SECONDS
        text = ""
        while time.monotonic() < last and not text.startswith(("The pole stood", "Failed")):
            time.sleep(0.2)
            text = browser.run("document.getElementById('text').textContent")
        assert text.startswith("The pole stood for "), text
        assert int(text.split()[4]) >= STEPS
        # the physics of the page are those of Gymnasium
        env: Any = gym.make("CartPole-v1").unwrapped
        env.reset(seed=0)
        state = np.array([0.01, -0.02, 0.03, 0.04])
        theirs, env.state = [*state], state
        for action in (0, 1, 1, 0, 1):
            theirs = browser.run(f"advance({json.dumps(theirs)}, {action})")
            env.step(action)
        np.testing.assert_allclose(theirs, np.asarray(env.state), rtol=1e-12)
        drawn = browser.run(
            "document.getElementById('scene').getContext('2d').getImageData(0,0,600,240).data.some(x=>x)"
        )
        assert drawn
    finally:
        browser.stop()
