"""The learner on a GPU is measured against the same nets and the same arithmetic, and the measurement runs."""

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import BARE, JOBS, LEARNERS, Bare, learner, measure, rollout_of, table
from rlmodule import Columns

CPU, ID = torch.device("cpu"), "default_policy"


def small(name: str) -> object:
    return replace(JOBS[name], num_envs=2, fragment=6, minibatch_size=4, num_epochs=1)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_runs_on_the_cpu_too(name: str) -> None:
    names = ["as it stands", "bfloat16"]
    speeds = measure(small(name), names, CPU, repeats=2)  # type: ignore[arg-type]
    assert list(speeds) == [BARE, *names]
    assert all(len(values) == 2 and min(values) > 0 for values in speeds.values())


def copied(name: str) -> tuple[Bare, object]:
    """Both sides of a job with the same weights: ours lie encoders first."""
    job = small(name)
    bare, ours = Bare(job, CPU), learner(job, CPU, {})  # type: ignore[arg-type]
    module = ours.module[ID]
    if name == "atari":
        theirs = [*bare.trunk.parameters(), *bare.pi.parameters(), *bare.vf.parameters()]
        mine = list(module.parameters())
    else:
        pi, vf = [*bare.pi.parameters()], [*bare.vf.parameters()]
        theirs = [*pi[:4], *vf[:4]]
        mine = [p for n, p in module.named_parameters() if n.startswith("encoder")]
        heads = {n: p for n, p in module.named_parameters() if not n.startswith("encoder")}
        assert bare.log_std is not None
        for n, p in heads.items():
            kind = (vf if n.startswith("vf") else pi)[4 if n.endswith("weight") else 5]
            theirs.append(bare.log_std if "log_std" in n else kind)
            mine.append(p)
    with torch.no_grad():
        for other, own in zip(theirs, mine, strict=True):
            assert other.shape == own.shape
            other.copy_(own)
    assert sum(p.numel() for p in bare.parameters) == sum(p.numel() for p in module.parameters())
    return bare, ours


@pytest.mark.parametrize("name", ["atari", "mujoco"])
def test_both_sides_minimise_the_same(name: str) -> None:
    bare, ours = copied(name)
    rollout = rollout_of(bare.job)
    ours.module.eval()  # type: ignore[attr-defined]
    with torch.no_grad():
        batch, _ = ours.make_train_batch(ID, rollout)  # type: ignore[attr-defined]
        loss, _ = ours.compute_loss_for_module(ID, *ours.forward_rows(ID, batch))  # type: ignore[attr-defined]
    names = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
    obs, actions, logp = (rollout[column].flatten(0, 1) for column in names)
    advantages, targets = bare.estimate(obs, rollout)
    torch.testing.assert_close(advantages, batch[Columns.ADVANTAGES], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bare.loss(obs, actions, logp, advantages, targets), loss, rtol=1e-4, atol=1e-5)


def test_the_table_tells_shares_of_the_bare_loop() -> None:
    lines = table({"atari": {BARE: [100.0, 200.0, 400.0], "as it stands": [50.0, 300.0, 400.0]}}).splitlines()
    assert lines[2:] == [
        "| atari | the bare loop | 200 |  |",
        "| atari | as it stands | 300 | 1.00 (0.50 – 1.50) |",
    ]
    assert "as it stands" in LEARNERS
