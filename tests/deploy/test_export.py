"""Exports: what is in a file, and what is refused instead of written."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from rlmodule import Columns, Policy
from rlmodule.modules import export
from rlmodule.testing.data import differences

pytestmark = pytest.mark.filterwarnings("ignore:.*")  # of onnx and of torch's exporters

OBS, BOX = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


def policy_of(cls: Any = PPOModule, action: spaces.Space = BOX, obs: spaces.Space = OBS, **model: Any) -> Policy:
    catalog = DQNCatalog if issubclass(cls, DQNModule) else PPOCatalog
    settings = {"fcnet_hiddens": [64, 64], **model}
    return Policy(cls(observation_space=obs, action_space=action, model_config=settings, catalog_class=catalog))


def test_a_file_is_small_described_and_says_nothing_of_the_machine(tmp_path: Path) -> None:
    policy = policy_of()
    path = policy.export(tmp_path / "sub" / "x.onnx", explore=True)
    weights = sum(x.nbytes for x in policy.module.get_state(inference_only=True).values())
    assert path.stat().st_size <= 1.15 * weights
    assert str(Path(export.__file__).parent).encode() not in path.read_bytes()
    model = onnx.load(path)
    about = json.loads(next(item.value for item in model.metadata_props if item.key == "catalog_rl"))
    assert about["inputs"]["obs"] == {"dtype": "float32", "shape": ["batch", 3]}
    assert about["noise"] == [{"kind": "normal", "width": 2}]
    assert about["action_space"]["__space__"] == "Box"
    assert [item.name for item in model.graph.output] == about["outputs"] == ["action", "dist_inputs"]
    casts = [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]
    kinds = {item.data_type for item in model.graph.initializer} | {*casts}
    assert onnx.TensorProto.FLOAT in kinds
    assert onnx.TensorProto.DOUBLE not in kinds, "few runtimes have float64"


def test_a_program_of_torch_acts_as_the_policy(tmp_path: Path) -> None:
    policy = policy_of(use_gru=True, lstm_cell_size=8)
    extra = {export.METADATA: ""}
    program = torch.export.load(policy.export(tmp_path / "x.pt2"), extra_files=extra).module()
    assert list(json.loads(extra[export.METADATA])["inputs"]) == ["obs", "starts", "state.h"]
    state, hidden = None, torch.full((5, 1, 8), 9.0)
    for t in range(3):
        obs = np.random.default_rng(t).normal(size=(5, 3)).astype(np.float32)
        actions, state = policy.act_batch(obs, state)
        ours, _, hidden = program(torch.from_numpy(obs), torch.full((5,), t == 0), hidden)
        np.testing.assert_allclose(ours.detach(), actions, atol=1e-5)


def test_a_program_of_a_net_with_batch_norm_has_its_running_statistics(tmp_path: Path) -> None:
    policy = policy_of(fcnet_hiddens=[8, 8], fcnet_blocks="simba", fcnet_norm="batch")
    for part in policy.module.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            part.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
            part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    policy.save(tmp_path / "policy")
    program = torch.export.load(policy.export(tmp_path / "x.pt2")).module()
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "x.onnx"))
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected, _ = policy.act_batch(obs)
    for actions in (
        program(torch.from_numpy(obs))[0].detach().numpy(),
        session.run(None, {"obs": obs})[0],
        Policy.load(tmp_path / "policy").act_batch(obs)[0],
    ):
        np.testing.assert_allclose(actions, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_program_compiled_for_this_machine_acts_as_the_policy(tmp_path: Path) -> None:
    policy = policy_of(use_gru=True, lstm_cell_size=8)
    program = torch.export.load(policy.export(tmp_path / "x.pt2"))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "compiled.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    for num in (1, 2, 7):
        state, hidden = None, torch.zeros(num, 1, 8)
        for t in range(3):
            obs = np.random.default_rng(t).normal(size=(num, 3)).astype(np.float32)
            actions, state = policy.act_batch(obs, state)
            ours, _, hidden = compiled(torch.from_numpy(obs), torch.full((num,), t == 0), hidden)
            np.testing.assert_allclose(ours, actions, atol=1e-5)


class Reads(PPOModule):
    """Depends on values, which cannot be traced."""

    def _forward(self, batch: Any) -> Any:
        out = super()._forward(batch)
        if batch[Columns.OBS].sum() > 0:
            out[Columns.ACTION_DIST_INPUTS] = out[Columns.ACTION_DIST_INPUTS] * 2
        return out


def test_a_net_that_cannot_be_traced_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected nets of Reads that .*test_export\.py, line \d+\. Use operations"):
        policy_of(Reads).export(tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = export._as_program

    def off(program: Any, graph: Any) -> Any:
        content, run = real(program, graph)
        return content, lambda flat: [out + 1e-4 for out in run(flat)]

    monkeypatch.setattr(export, "_as_program", off)
    with pytest.raises(ValueError, match=r"another dist_inputs for a batch of 3 \(by 0\.0001\)\. Nothing is written"):
        policy_of().export(tmp_path / "x.pt2")
    assert not [*tmp_path.iterdir()]


def test_small_numbers_next_to_large_ones_may_differ_by_the_rounding_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are sums of numbers as large as the largest of them."""
    real = export._as_program
    masked = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(16)})
    policy = policy_of(action=spaces.Discrete(16), obs=masked)  # type: ignore[arg-type]
    with torch.no_grad():
        policy.module.get_parameter("pi_head.linears.0.bias").copy_(torch.tensor([100.0, 0.0] * 8))
    off = 5e-4

    def rounded(program: Any, graph: Any) -> Any:
        content, run = real(program, graph)
        return content, lambda flat: [out + off if out.is_floating_point() else out for out in run(flat)]

    monkeypatch.setattr(export, "_as_program", rounded)
    policy.export(tmp_path / "x.pt2")
    off = 5e-3
    with pytest.raises(ValueError, match=r"another dist_inputs for a batch of 3 \(by 0\.005\)"):
        policy.export(tmp_path / "x.pt2")


def test_exporting_leaves_the_policy_as_it_was(tmp_path: Path) -> None:
    policy = policy_of(use_lstm=True, lstm_cell_size=8)
    obs, before = np.ones(3, np.float32), torch.random.get_rng_state()
    expected = policy.act(obs)
    policy.export(tmp_path / "x.pt2")
    assert differences(policy.act(obs), expected) == []
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_cannot_be_given_as_noise_is_refused(tmp_path: Path) -> None:
    noisy = policy_of(DQNModule, spaces.Discrete(2), noisy=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sampled from noise, got noise in the weights of DQNModule"):
        noisy.export(tmp_path / "x.pt2", explore=True)


def test_two_leaves_of_one_name_are_refused(tmp_path: Path) -> None:
    obs = spaces.Dict({"a.b": OBS, "a": spaces.Dict({"b": OBS})})
    with pytest.raises(ValueError, match=r"a different name for each tensor, got obs\.a\.b, obs\.a\.b"):
        policy_of(obs=obs).export(tmp_path / "x.pt2")


def test_a_runtime_that_is_too_old_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = export._stripped

    def of_the_future(model: Any, metadata: dict[str, str]) -> bytes:
        model.opset_import[0].version = 99
        return real(model, metadata)

    monkeypatch.setattr(export, "_stripped", of_the_future)
    with pytest.raises(
        ValueError, match=r"an onnxruntime that runs opset 99, got \d.*opset.*pip install -U onnxruntime"
    ):
        policy_of().export(tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.pt2").mkdir()
    with pytest.raises(
        OSError, match=r"^Policy\.export\('.*x\.pt2'\): expected a file to write to, got Is a dir.*Choose"
    ):
        policy_of().export(tmp_path / "x.pt2")


def test_a_missing_package_and_an_unknown_ending_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"a name that ends with \.onnx or \.pt2, got 'x\.pt'"):
        policy_of().export(tmp_path / "x.pt")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"expected the package onnxscript, got none\. Run: pip install"):
        policy_of().export(tmp_path / "x.onnx")
