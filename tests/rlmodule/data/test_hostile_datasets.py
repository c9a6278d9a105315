"""Folders of data sets that somebody forged, with digests that are right: each is refused with one clear error, and
nothing is imported, called, written or hugely allocated."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import Dataset, sealed_folder
from rlmodule.sealed_folder import parse_tensors, read_folder, write_folder

S, E = 6, 2
MOST_BYTES = 4_000_000
Forge = Callable[[Path], object]


def good() -> Dataset:
    """Two episodes of three steps."""
    ends = np.arange(S) % 3 == 2
    named = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(3), "env": "Known-v0"}
    return Dataset.from_arrays(
        np.zeros((S, 2), np.float32), np.arange(S) % 3, np.arange(S), terminals=ends, timeouts=None, **named
    )


# --- forgeries --------------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    files = read_folder(folder, "dataset")
    return json.loads(files["data.json"]), parse_tensors(files["data.safetensors"], "data.safetensors")


def sealed(**files: Any) -> Forge:
    """Write the folder again with other files, and digests that fit; ``json`` and ``tensors`` are those of a data
    set."""

    def forge(folder: Path) -> None:
        plain, arrays = files_of(folder)
        content = {"data.json": json.dumps(plain).encode(), "data.safetensors": arrays}
        named = {"json": "data.json", "tensors": "data.safetensors"}
        write_folder(folder, "dataset", content | {named.get(name, name): data for name, data in files.items()})

    return forge


def plain(**entries: Any) -> Forge:
    """Change entries of ``data.json``."""
    return lambda folder: sealed(json=json.dumps(files_of(folder)[0] | entries).encode())(folder)


def seen(space: Any) -> Forge:
    return plain(observation_space=space)


def arrays(**changes: Any) -> Forge:
    """Change arrays; None takes one away. The keyword ``observations_0`` is the array ``observations/0``."""

    def forge(folder: Path) -> None:
        changed = files_of(folder)[1] | {name.replace("_0", "/0"): array for name, array in changes.items()}
        sealed(tensors={name: array for name, array in changed.items() if array is not None})(folder)

    return forge


def longer(name: str) -> Forge:
    """Repeat the last row of a column."""

    def forge(folder: Path) -> None:
        column = files_of(folder)[1][name]
        arrays(**{name: torch.cat([column, column[-1:]])})(folder)

    return forge


def header(**entry: Any) -> Forge:
    """Change what the header of the tensors says of the rewards."""

    def forge(folder: Path) -> None:
        content = (folder / "data.safetensors").read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        named = json.loads(content[8:begin])
        named["rewards"] |= entry
        text = json.dumps(named).encode()
        sealed(tensors=len(text).to_bytes(8, "little") + text + content[begin:])(folder)

    return forge


def cut(name: str, size: int) -> Forge:
    """Truncate a file, with a digest that fits."""

    def forge(folder: Path) -> None:
        content = (folder / name).read_bytes()[:size]
        sealed(**{name: content})(folder)

    return forge


def manifest(change: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change the manifest, and seal it again."""

    def forge(folder: Path) -> None:
        body = json.loads((folder / "manifest.json").read_bytes())
        del body["sha256"]
        change(body)
        (folder / "manifest.json").write_bytes(sealed_folder._sealed(body))

    return forge


def listed(name: str, entry: Any) -> Forge:
    return manifest(lambda body: body["files"].update({name: entry}))


def box(*shape: Any, **changes: Any) -> dict[str, Any]:
    return {"__space__": "Box", "low": -1.0, "high": 1.0, "shape": shape, "dtype": "float32"} | changes


def nested(depth: int) -> Any:
    space: Any = box(2)
    for _ in range(depth):
        space = {"__space__": "Tuple", "spaces": [space]}
    return space


def offsets(*rows: int) -> Forge:
    num = len(rows) - 1
    flags = {"terminated": torch.ones(num, dtype=torch.bool), "truncated": torch.zeros(num, dtype=torch.bool)}
    return arrays(offsets=torch.tensor(rows), final_observations_0=torch.zeros(num, 2), **flags)


class Call:
    """Makes a folder in the working directory when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("called",)


def of_torch() -> bytes:
    file = io.BytesIO()
    torch.save(Call(), file)
    return file.getvalue()


def of_numpy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Call()]), allow_pickle=True)
    return file.getvalue()


NO_SPACES = r"\(data.json: its spaces are no spaces of Gymnasium that fit its arrays\)"
NO_FIT = r"\(data.safetensors: its header does not fit its content \("
NO_DICT = r"\(data.json: it is no dict with the spaces and the id of the env\)"
NO_FILE = r"is not a file of the folder\)"
LONG = [10**4000] * 100

FORGERIES: dict[str, tuple[Forge, str]] = {
    # the header of the tensors
    "a shape of terabytes": (header(shape=[10**12]), NO_FIT),
    "a shape that is negative": (header(shape=[-2, -3]), NO_FIT),
    "a shape of another kind": (header(shape={"a": 1}), NO_FIT),
    "a shape whose product takes minutes": (header(shape=LONG), NO_FIT + r"a shape that is no list of up to 64 sizes"),
    "a shape whose text is long": (header(shape=[10**4000]), NO_FIT + r"a shape that is no list"),
    "a shape of 65 sizes": (header(shape=[S] + [1] * 64), NO_FIT + r"a shape that is no list of up to 64 sizes"),
    "a shape that fits the bytes alone": (header(shape=[2, 3]), r"offsets: expected 0 first and 2 last, got 0 and 6"),
    "a wider dtype": (header(dtype="F64"), NO_FIT + r"24 bytes for a shape of \[6\]"),
    "a dtype of objects": (header(dtype="O"), NO_FIT),
    "offsets beyond the file": (header(data_offsets=[0, 10**18]), NO_FIT),
    "offsets before the file": (header(data_offsets=[-24, 0]), NO_FIT),
    # tensors
    "a dtype that NumPy lacks": (arrays(rewards=torch.zeros(S, dtype=torch.bfloat16)), r"BFloat16"),
    "complex rewards": (
        arrays(rewards=torch.zeros(S, dtype=torch.complex64)),
        r"rewards: expected numbers, got .*complex",
    ),
    "bools as observations": (arrays(observations_0=torch.zeros(S, 2, dtype=torch.bool)), r"float32 .*, got bool"),
    "rewards of nothing": (arrays(rewards=torch.zeros(0, 10**9)), r"rewards: expected at least one step, got none"),
    "an array that is missing": (arrays(actions_0=None), r"\(no 'actions/0'\)"),
    "an array too many": (arrays(more=torch.zeros(3)), r"\(data.safetensors: 'more' is no array of its spaces\)"),
    "more observations": (longer("observations/0"), r"observations: .*\(6, 2\), got float32 of shape \(7, 2\)"),
    "more final observations": (longer("final_observations/0"), r"final_observations: .*\(2, 2\), got .*\(3, 2\)"),
    "more actions": (longer("actions/0"), r"actions: .*\(6,\), got int64 of shape \(7,\)"),
    "more rewards": (longer("rewards"), r"offsets: expected 0 first and 7 last, got 0 and 6"),
    "more flags": (longer("truncated"), r"truncated: expected shape \(2,\), got \(3,\)"),
    "a pickle": (sealed(tensors=pickle.dumps(Call())), r"data.safetensors: its header is longer than the file"),
    "a pickle of torch": (sealed(tensors=of_torch()), r"data.safetensors: its header is longer than the file"),
    "a pickle of NumPy": (sealed(tensors=of_numpy()), r"data.safetensors: its header is longer than the file"),
    "a pickle as JSON": (sealed(json=pickle.dumps(Call())), r"data.json: 'utf-8' codec can't decode"),
    # ends of episodes
    "an end beyond the columns": (offsets(0, 3, 7), r"offsets: expected 0 first and 6 last, got 0 and 7"),
    "an end before the columns": (offsets(0, -1, 6), r"offsets, episode 0: expected at least one step"),
    "ends that overflow": (
        offsets(0, 2**62, 2**63 - 1, -(2**62), 6),
        r"offsets, episode 2: expected at least one step, got rows 9\d+ to -4",
    ),
    # spaces
    "a Box of gigabytes": (seen(box(2**25)), NO_SPACES),
    "many Boxes": (seen({"__space__": "Tuple", "spaces": [box(2)] * 1000}), NO_SPACES),
    "a Box of a negative size": (seen({"__space__": "Tuple", "spaces": [box(2**20), box(-(2**20))]}), NO_SPACES),
    "a Box of many sizes": (seen(box(*LONG)), NO_SPACES),
    "a Box of a text": (seen(box(2, shape="2")), NO_SPACES),
    "a Box of objects": (seen(box(2, dtype="O")), NO_SPACES),
    "a Box of records": (seen(box(2, dtype="f4,f4")), NO_SPACES),
    "a Box with ragged bounds": (seen(box(2, low=[0, [1]])), NO_SPACES),
    "a Box without bounds": (seen({"__space__": "Box", "shape": [2]}), NO_SPACES),
    "a MultiBinary of terabytes": (seen({"__space__": "MultiBinary", "n": 10**12}), r"got float32 of shape \(6, 2\)"),
    "a Discrete beyond int64": (
        plain(action_space={"__space__": "Discrete", "n": 2**70, "start": 0, "dtype": "int64"}),
        NO_SPACES,
    ),
    "a Dict without fields": (seen({"__space__": "Dict", "spaces": []}), r"observations/0' is no array of its spaces"),
    "a Dict with a list as a key": (seen({"__space__": "Dict", "spaces": [[[1], box(2)]]}), NO_SPACES),
    "a Tuple of 400 Tuples": (seen(nested(400)), NO_SPACES),
    "a deep list": (seen(json.loads("[" * 600 + "]" * 600)), NO_SPACES),
    "a space of no kind": (seen({"__space__": "Graph"}), NO_SPACES),
    "a space that was not saved": (seen({"__pass_again__": "here"}), NO_SPACES),
    "no space": (seen(None), NO_SPACES),
    "a function of this library": (seen({"__import__": "algorithms.cli:main"}), NO_SPACES),
    "an import in a space": (seen({"__space__": "Tuple", "spaces": [{"__import__": "antigravity:fly"}]}), NO_SPACES),
    "a dataclass": (seen({"__dataclass__": "this:s", "fields": {}}), NO_SPACES),
    # data.json
    "a list": (sealed(json=b"[]"), NO_DICT),
    "a number": (sealed(json=b"1"), NO_DICT),
    "a dict of nothing": (sealed(json=b"{}"), r"\(no 'env'\)"),
    "a list as env": (plain(env=["a"]), NO_DICT),
    "a number as env": (plain(env=0), NO_DICT),
    "a key twice": (sealed(json=b'{"env": null, "env": null}'), r"data.json: a key occurs twice"),
    "deep JSON": (sealed(json=b"[" * 100_000), r"data.json: .*recursion"),
    # files
    "JSON that is cut off": (cut("data.json", 40), r"data.json: .*char"),
    "JSON of nothing": (cut("data.json", 0), r"data.json: Expecting value"),
    "a header that is cut off": (cut("data.safetensors", 40), r"its header is longer than the file"),
    "arrays that are cut off": (cut("data.safetensors", -1), NO_FIT),
    "arrays of nothing": (cut("data.safetensors", 0), r"its header is longer than the file"),
    "a manifest that is cut off": (
        lambda folder: os.truncate(folder / "manifest.json", 100),
        r"manifest.json: ",
    ),
    "a manifest of terabytes": (
        lambda folder: os.truncate(folder / "manifest.json", 1 << 40),
        r"manifest.json: expected at most 1000000 bytes",
    ),
    "arrays of terabytes": (
        lambda folder: os.truncate(folder / "data.safetensors", 1 << 40),
        r"data.safetensors: expected \d+ bytes, got 1099511627776",
    ),
    "other bytes": (
        lambda folder: (folder / "data.json").write_bytes((folder / "data.json").read_bytes().replace(b"K", b"k")),
        r"data.json: expected the SHA-256",
    ),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"manifest.json: No such file"),
    "no arrays": (lambda folder: (folder / "data.safetensors").unlink(), r"data.safetensors: No such file"),
    "a file that is not listed": (
        lambda folder: (folder / "more.py").write_text("1"),
        r"more.py: it is not in manifest",
    ),
    "a file that is listed": (sealed(**{"more.py": b"1"}), r"manifest.json: it lists other files than data.json and d"),
    "arrays that are not listed": (
        manifest(lambda body: body["files"].pop("data.safetensors")),
        r"data.safetensors: it is not in manifest.json",
    ),
    # the manifest
    "a name that leads up": (listed("../secret", {"size": 6, "sha256": ""}), NO_FILE),
    "a name that leads away": (listed("/etc/passwd", {"size": 6, "sha256": ""}), NO_FILE),
    "a name that leads down": (listed("a/b", {"size": 6, "sha256": ""}), NO_FILE),
    "a name of nothing": (listed("", {"size": 6, "sha256": ""}), NO_FILE),
    "a name that clears the screen": (listed("\x1b[2J", {"size": 6, "sha256": ""}), NO_FILE),
    "a size of another kind": (listed("data.json", {"size": True, "sha256": ""}), NO_FILE),
    "no size": (listed("data.json", 6), NO_FILE),
    "a size of terabytes": (listed("data.json", {"size": 10**18, "sha256": ""}), r"expected 10{18} bytes, got"),
    "another digest": (
        manifest(lambda body: body["files"]["data.json"].update(sha256="0" * 64)),
        r"data.json: expected the SHA-256 0+, got",
    ),
    "no digest": (manifest(lambda body: body["files"]["data.json"].pop("sha256")), r"expected the SHA-256 None, got"),
    "files as a list": (manifest(lambda body: body.update(files=["data.json"])), r"manifest.json: it lists no files"),
    "another kind": (manifest(lambda body: body.update(kind="policy")), r"it is of a policy of format 1; this version"),
    "a later format": (manifest(lambda body: body.update(format=99)), r"it is of a dataset of format 99; this version"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_folder_is_refused_and_does_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge, message = FORGERIES[name]
    (tmp_path / "secret").write_bytes(b"secret")
    monkeypatch.chdir(tmp_path)
    folder = good().save(tmp_path / "own")
    Dataset.load(folder)  # so that nothing is imported for the first time below
    forge(folder)
    modules, files = {*sys.modules}, {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            Dataset.load(folder)
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert text.startswith(f"Dataset.load({str(folder)!r}): ")
    assert "expected" in text
    assert ", got " in text
    assert text.endswith(".")
    assert text.isprintable()
    assert len(text) < 500 + len(str(folder))
    assert allocated < MOST_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 32_000  # KiB, with what torch allocates
    assert {*sys.modules} == modules
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files


def test_a_folder_without_a_description_is_no_data_set(tmp_path: Path) -> None:
    folder = good().save(tmp_path / "own")
    (folder / "data.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"^Dataset.load\(.*\): expected a folder that Dataset.save\(path\)"):
        Dataset.load(folder)


def test_the_folder_that_is_forged_is_taken_without_a_forgery(tmp_path: Path) -> None:
    folder = good().save(tmp_path / "own")
    for forge in (sealed(), plain(), arrays(), header(), manifest(lambda body: None), seen(box(2)), offsets(0, 3, 6)):
        forge(folder)
        assert Dataset.load(folder).digest == good().digest


def test_the_id_of_an_env_is_a_text_that_a_terminal_can_print(tmp_path: Path) -> None:
    folder = good().save(tmp_path / "own")
    plain(env="a\x1b[2J\n\ud800")(folder)
    assert Dataset.load(folder).env == r"a\x1b[2J\n\ud800"
