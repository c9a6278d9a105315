"""Checkpoints: what goes in comes out, nothing is lost when writing fails, and reading runs no code."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from rlmodule.checkpoint import load_checkpoint, prepare_checkpoint, save_checkpoint
from rlmodule.sealed_folder import write_folder
from rlmodule.testing.data import clone, differences
from tests.checkpoints import rewrite

STATE: dict[str, Any] = {
    "weights": {"a.b": torch.arange(6.0).view(2, 3), "flag": torch.tensor(True), "empty": torch.zeros(0, 4)},
    "list": [1, 2.5, None, "text", True, {"deep": [torch.tensor(3)]}],
    "nothing": {},
    "big": 2**100,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "kinds": [torch.zeros(2, dtype=kind) for kind in (torch.float64, torch.bfloat16, torch.int64, torch.uint8)],
}


def test_round_trip(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "deep" / "er" / "run", STATE)
    assert path == tmp_path / "deep" / "er" / "run"
    assert differences(load_checkpoint(path), STATE) == []
    assert sorted(os.listdir(path)) == ["checkpoint.json", "manifest.json", "tensors.safetensors"]
    assert os.listdir(path.parent) == ["run"]


def test_tuples_become_lists_and_numpy_numbers_python_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"t": (1, (2,)), "n": np.float32(0.5), "i": np.int64(3), 7: "key"})
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded == {"t": [1, [2]], "n": 0.5, "i": 3, "7": "key"}
    assert type(loaded["i"]) is int


def test_views_and_shared_tensors(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    state = {"base": base, "again": base, "column": base[:, 1], "turned": base.T, "grad": base.clone().requires_grad_()}
    save_checkpoint(tmp_path / "c", state)
    assert differences(load_checkpoint(tmp_path / "c"), state) == []


def test_one_item_with_a_stride_of_zero(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"a": torch.tensor([7]).as_strided([1], [0])})
    assert load_checkpoint(tmp_path / "c")["a"].tolist() == [7]


def test_the_state_of_numpys_and_torchs_generators(tmp_path: Path) -> None:
    rng, generator = np.random.default_rng(5), torch.Generator().manual_seed(5)
    state = {"numpy": rng.bit_generator.state, "torch": generator.get_state()}
    save_checkpoint(tmp_path / "c", state)
    numbers = rng.random(3), torch.rand(3, generator=generator)
    loaded = load_checkpoint(tmp_path / "c")
    rng.bit_generator.state = loaded["numpy"]
    generator.set_state(loaded["torch"])
    np.testing.assert_array_equal(rng.random(3), numbers[0])
    assert torch.equal(torch.rand(3, generator=generator), numbers[1])


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.integers(0, 3).map(torch.zeros)
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a/b", "a/0", ""]), inner),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(tree=st.dictionaries(st.sampled_from(["a", "b", "a/b", "a'"]), trees))
def test_any_tree_comes_back(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "c"
    save_checkpoint(path, tree)
    assert differences(load_checkpoint(path), tree) == []


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": {"b": [0, object()]}}, r"'a/b/1'.*got object"),
        ({"a": np.zeros(2)}, "'a'.*got ndarray"),
        ({"a": {1: 0, "1": 1}}, "'a'.*keys"),
        ({"a": {"__tensor__": "b"}}, "'a'.*keys"),
    ],
)
def test_what_cannot_be_saved_is_named_and_harms_nothing(tmp_path: Path, state: dict[str, Any], text: str) -> None:
    save_checkpoint(tmp_path / "c", STATE)
    with pytest.raises(TypeError, match=text):
        save_checkpoint(tmp_path / "c", state)
    assert differences(load_checkpoint(tmp_path / "c"), STATE) == []
    assert os.listdir(tmp_path) == ["c"]


def test_a_second_save_replaces_the_first(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", STATE)
    save_checkpoint(tmp_path / "c", {"new": torch.ones(1)})
    assert differences(load_checkpoint(tmp_path / "c"), {"new": torch.ones(1)}) == []
    assert os.listdir(tmp_path) == ["c"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    save_checkpoint(tmp_path / "c", {"a": 1})
    assert load_checkpoint(tmp_path / "c") == {"a": 1}


def test_the_replay_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    state = {"replay": {"obs": torch.ones(2), "rows": 2}, "replays": torch.zeros(1), "a": {"replay": torch.ones(1)}}
    path = save_checkpoint(tmp_path / "c", state)
    assert [*load_file(path / "replay.safetensors")] == ["replay/obs"]
    assert {*load_file(path / "tensors.safetensors")} == {"replays", "a/replay"}
    assert differences(load_checkpoint(path), state) == []


def test_what_was_prepared_with_a_copy_may_change(tmp_path: Path) -> None:
    state = {"a": torch.zeros(3)}
    write = prepare_checkpoint(state, copy=True)
    state["a"].add_(1)
    assert load_checkpoint(write(tmp_path / "c"))["a"].tolist() == [0, 0, 0]


def test_foreign_folders_and_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    (tmp_path / "file").write_text("more")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "manifest.json").write_text("{}")
    write_folder(tmp_path / "policy", "policy", {"policy.json": b"{}"})
    for name in ("thesis", "file", "page", "policy"):
        with pytest.raises(FileExistsError, match=f"{name}.*Choose another path"):
            save_checkpoint(tmp_path / name, STATE)
    assert (tmp_path / "thesis" / "text").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "more"
    assert sorted(os.listdir(tmp_path)) == ["file", "page", "policy", "thesis"]
    assert sorted(os.listdir(tmp_path / "policy")) == ["manifest.json", "policy.json"]


@pytest.mark.parametrize("inside", ["x", "deep/er/x"])
def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("more")
    path = tmp_path / "file" / inside
    got = "Not a directory|File exists"
    with pytest.raises(OSError, match=rf"^save\('{path}'\): expected a folder to write to, got ({got})\. Choose"):
        save_checkpoint(path, STATE)
    if Path("/proc/self").exists():
        with pytest.raises(OSError, match=r"^save\('/proc/nothing'\): expected a folder to write to, got .+\. Choose"):
            save_checkpoint("/proc/nothing", STATE)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_who_may_read_a_checkpoint_goes_by_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for _ in range(2):  # new, and in the place of another
            path = save_checkpoint(tmp_path / "c", STATE)
            assert path.stat().st_mode & 0o777 == 0o777 & ~mask
            assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o666 & ~mask}
    finally:
        os.umask(before)


def test_nothing_to_load(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match=r"checkpoint\.json.*got none"):
            load_checkpoint(path)


def test_damage_is_told_in_words(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", {"a": torch.ones(1)})
    deep: Any = 1
    for _ in range(101):
        deep = [deep]
    for content, message in (
        ({"a": {"__tensor__": "nowhere"}}, "checkpoint.json: the tensor 'nowhere' is missing"),
        ({"a": {"__tensor__": []}}, "checkpoint.json: unhashable type: 'list'"),
        ([1], "checkpoint.json: it is not an object"),
        ({"a": deep}, "checkpoint.json: it is nested deeper than 100"),
    ):
        rewrite(path, lambda _, content=content: content)
        with pytest.raises(
            ValueError, match=re.escape(f"one that cannot be read ({message}). Load another checkpoint;")
        ):
            load_checkpoint(path)
    rewrite(path, lambda _: {"a": deep[0][0]})
    load_checkpoint(path)


def test_a_checkpoint_of_format_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text('{"format": 1, "state": {}}')
    with pytest.raises(ValueError, match=r"\(manifest\.json: No such file or directory; checkpoints of format 1 have"):
        load_checkpoint(tmp_path)


def test_the_folder_of_a_policy_leads_to_what_loads_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "policy", "policy", {"policy.json": b"{}"})
    with pytest.raises(
        ValueError, match=r"got one that .* of a policy .* load it with Policy\.load\(\) or MultiAgentPol"
    ):
        load_checkpoint(tmp_path / "policy")


def test_of_two_checkpoints_of_a_run_the_sound_one_is_named(tmp_path: Path) -> None:
    last, best = (save_checkpoint(tmp_path / name, STATE) for name in ("checkpoint", "best_checkpoint"))
    remote = save_checkpoint(tmp_path / "mine", STATE)
    os.truncate(best / "tensors.safetensors", 40)
    with pytest.raises(ValueError, match=rf"\. Load '{last}', which is sound; this one is damaged or from"):
        load_checkpoint(best)
    os.truncate(remote / "tensors.safetensors", 40)
    os.truncate(last / "checkpoint.json", 40)
    for path in (last, best, remote):
        with pytest.raises(ValueError, match=r"\. Load another checkpoint; this one"):
            load_checkpoint(path)


def test_loading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "c", STATE)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", never)
    monkeypatch.setattr(pickle, "loads", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    monkeypatch.setattr(torch, "load", never)
    assert differences(load_checkpoint(path), STATE) == []


def test_what_was_saved_does_not_change_with_its_tensors(tmp_path: Path) -> None:
    state = {"a": torch.zeros(3)}
    kept = clone(state)
    save_checkpoint(tmp_path / "c", state)
    state["a"].add_(1)
    loaded = load_checkpoint(tmp_path / "c")
    loaded["a"].add_(0)  # and what is loaded can be written to
    assert differences(loaded, kept) == []
