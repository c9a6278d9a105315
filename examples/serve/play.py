"""Export a policy with a memory to ONNX, serve it over HTTP, and play with what the server answers.

Run it as ``python examples/serve/play.py``.
"""

import json
from threading import Thread
from urllib.request import Request, urlopen

import gymnasium as gym
from server import server_of

from algorithms.ppo import PPOConfig

config = PPOConfig().environment("CartPole-v1").debugging(seed=1)
config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 16})
with config.build() as algo:
    algo.learn(num_env_steps=20_000, progress=True)
    file = algo.policy.export("runs/policy.onnx")

server = server_of(str(file))
Thread(target=server.serve_forever, daemon=True).start()

# what follows could be another program, on another machine: it needs no more than json
env = gym.make("CartPole-v1")
obs, info = env.reset(seed=0)
state, start, total, over = {"state.h": [[[0.0] * 16]], "state.c": [[[0.0] * 16]]}, True, 0.0, False
while not over:
    question = json.dumps({"obs": [obs.tolist()], "starts": [start], **state}).encode()
    with urlopen(Request(f"http://127.0.0.1:{server.server_port}", question)) as answer:
        out = json.load(answer)
    state, start = {name: out[f"next_{name}"] for name in state}, False
    obs, reward, terminated, truncated, info = env.step(out["action"][0])
    total, over = total + float(reward), terminated or truncated
print(f"Return {total:g}, with the actions of the server")
server.shutdown()
server.server_close()
