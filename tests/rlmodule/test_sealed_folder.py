"""Folders that are written at once: whatever is killed, fails, flips or lies, one whole folder is read, or none."""

import errno
import io
import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlmodule import sealed_folder
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.sealed_folder import (
    DamagedFolder,
    parse_json,
    parse_tensors,
    read_folder,
    read_manifest,
    standing_in,
    verify_folder,
    write_folder,
)
from rlmodule.testing.data import differences

OLD: dict[str, Any] = {"number": 1, "tensors": {"a": torch.arange(40.0), "b": torch.ones(3, dtype=torch.int64)}}
NEW: dict[str, Any] = {"number": 2, "tensors": {"a": torch.arange(40.0) + 1, "b": torch.zeros(3, dtype=torch.int64)}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "c", OLD)


def which(path: Path) -> str:
    """Whether the old or the new checkpoint is at ``path``; anything else is an error."""
    state = load_checkpoint(path)
    return next(name for name, other in (("old", OLD), ("new", NEW)) if not differences(state, other))


# --- what is in the files ---------------------------------------------------------------------------------------------


def test_the_manifest_names_every_file_with_its_digest(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    assert (manifest["kind"], manifest["format"]) == ("checkpoint", 2)
    # without the build, such as +cpu, where the package leaves it out
    assert manifest["versions"]["torch"] == version("torch")
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == {
        file.name: file.stat().st_size for file in saved.iterdir() if file.name != "manifest.json"
    }
    listed = "".join(f"{entry['sha256']}  {name}\n" for name, entry in manifest["files"].items())
    subprocess.run(["sha256sum", "--check", "--strict"], input=listed, text=True, cwd=saved, check=True)
    assert verify_folder(saved, "checkpoint") == read_manifest(saved, "checkpoint") == manifest


dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
tensors = st.tuples(st.lists(st.integers(0, 3), max_size=3), dtypes).map(
    lambda kind: torch.ones(kind[0], dtype=kind[1])
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=3), tensors))
def test_our_safetensors_are_those_of_the_library(given: dict[str, Tensor]) -> None:
    ours = b"".join(bytes(chunk) for chunk in sealed_folder._chunks(given))
    assert differences(safetensors.torch.load(ours), given) == []
    assert differences(parse_tensors(bytearray(safetensors.torch.save(given)), "x"), given) == []


def test_tensors_are_written_and_read_without_a_copy() -> None:
    tensor = torch.arange(6.0)
    _, chunk = sealed_folder._chunks({"a": tensor})
    tensor[0] = 7
    content = bytearray(b"".join(bytes(chunk) for chunk in sealed_folder._chunks({"a": tensor})))
    assert isinstance(chunk, memoryview)
    assert chunk.cast("f")[0] == 7
    parse_tensors(content, "x")["a"][1] = 8
    assert parse_tensors(content, "x")["a"].tolist() == [7, 8, 2, 3, 4, 5]


# --- damage -----------------------------------------------------------------------------------------------------------


def refused(path: Path, file: str) -> str:
    """The one error of a damaged checkpoint, which names the file."""
    with pytest.raises(ValueError, match=rf"^load\('{path}'\): expected a complete checkpoint.+\(({file})") as raised:
        load_checkpoint(path)
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def test_a_thousand_flipped_bits(saved: Path) -> None:
    draw, files = random.Random(0), sorted(saved.iterdir())
    sizes = [file.stat().st_size for file in files]

    def flip(file: Path, bit: int) -> None:
        with open(file, "r+b", buffering=0) as opened:
            (byte,) = os.pread(opened.fileno(), 1, bit // 8)
            os.pwrite(opened.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)

    for _ in range(1000):
        (file,) = draw.choices(files, sizes)
        bit = draw.randrange(8 * file.stat().st_size)
        flip(file, bit)
        refused(saved, file.name)
        flip(file, bit)
    assert which(saved) == "old"


def test_two_hundred_truncations(saved: Path) -> None:
    draw, files = random.Random(0), sorted(saved.iterdir())
    for _ in range(200):
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(whole[: draw.randrange(len(whole))])
        refused(saved, file.name)
        file.write_bytes(whole)


def test_files_of_another_checkpoint_missing_and_added_ones(saved: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "other", NEW)
    for file in sorted(saved.iterdir()):
        whole = file.read_bytes()
        file.write_bytes((other / file.name).read_bytes())
        expected = "checkpoint.json" if file.name == "manifest.json" else file.name
        assert "expected the SHA-256 " in refused(saved, expected)
        file.unlink()
        refused(saved, file.name)
        file.write_bytes(whole)
    (saved / "notes.txt").touch()
    assert "notes.txt: it is not in manifest.json" in refused(saved, "notes.txt")
    assert read_folder(saved, "checkpoint", others={"notes.txt"}).keys() == {"checkpoint.json", "tensors.safetensors"}


def test_another_kind_and_format(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", "policy", {"checkpoint.json": b"{}"})
    assert "it is of a policy of format 1; this version reads a checkpoint of format 2" in refused(
        tmp_path / "c", "manifest.json"
    )


def test_files_that_are_not_asked_for_are_not_read(saved: Path) -> None:
    file = saved / "tensors.safetensors"
    size = file.stat().st_size
    file.write_bytes(bytes(size))
    assert read_folder(saved, "checkpoint", {"checkpoint.json"}).keys() == {"checkpoint.json"}
    file.write_bytes(bytes(size + 1))
    with pytest.raises(DamagedFolder, match=rf"tensors\.safetensors: expected {size} bytes, got {size + 1}"):
        read_folder(saved, "checkpoint", {"checkpoint.json"})


# --- lies: the digests are right, the content is not ------------------------------------------------------------------


def link_to(target: str) -> Callable[[Path], None]:
    return lambda file: file.symlink_to(target)


ODD_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "device": link_to("/dev/zero"),
    "link": link_to("manifest.json"),
    "loop": lambda file: file.symlink_to(file.name),
}


@pytest.mark.parametrize("name", ["manifest.json", "checkpoint.json", "tensors.safetensors"])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_regular_file_is_not_waited_for(saved: Path, kind: str, name: str) -> None:
    (saved / name).unlink()
    ODD_FILES[kind](saved / name)
    refused(saved, name)


@pytest.mark.parametrize("name", ["manifest.json", "checkpoint.json", "tensors.safetensors"])
def test_a_file_that_is_a_link_to_elsewhere_is_refused(saved: Path, name: str) -> None:
    remote = (saved / name).rename(saved.parent / "remote")
    (saved / name).symlink_to(remote)
    message = refused(saved, name)
    assert f"({name}: it is a link, which is not followed; copy the folder with cp -rL if you trust it)" in message


def test_a_folder_that_is_reached_through_a_link_is_read(saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to(saved.parent)
    assert which(link / "c") == "old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes devices")
def test_a_device(saved: Path) -> None:
    (saved / "checkpoint.json").unlink()
    try:
        os.mknod(saved / "checkpoint.json", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices here")
    assert "it is not a regular file" in refused(saved, "checkpoint.json")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "", "."])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    save_checkpoint(tmp_path / "c", OLD)
    body = read_manifest(tmp_path / "c", "checkpoint")
    del body["sha256"]
    body["files"][name] = {"size": 6, "sha256": ""}
    (tmp_path / "c" / "manifest.json").write_bytes(sealed_folder._sealed(body))
    assert f"{name!r} is not a file of the folder" in refused(tmp_path / "c", "manifest.json")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, '{"a": 1, "a": 2}', "[]", "1", "{", ""],
)
@pytest.mark.parametrize("name", ["manifest.json", "checkpoint.json"])
def test_json_of_other_shapes(saved: Path, text: str, name: str) -> None:
    if name == "manifest.json":
        (saved / name).write_text(text)
    else:
        write_folder(saved, "checkpoint", {name: text.encode()})
    refused(saved, name)


def header(*entries: tuple[str, list[Any], list[Any]], rest: int = 8) -> bytes:
    named = {str(i): {"dtype": one, "shape": two, "data_offsets": three} for i, (one, two, three) in enumerate(entries)}
    text = json.dumps(named).encode()
    return len(text).to_bytes(8, "little") + text + bytes(rest)


HEADERS = {
    "no header": b"",
    "a length that is cut off": b"\1\0",
    "a header of gigabytes": (1 << 40).to_bytes(8, "little") + b"{}",
    "a header of exabytes": b"\xff" * 8 + b"{}",
    "a tensor of terabytes": header(("F32", [1 << 40], [0, 1 << 42])),
    "a shape that overflows": header(("F32", [1 << 62, 1 << 62], [0, 8])),
    "a shape that overflows, and of nothing": header(("F32", [1 << 62, 1 << 62, 0], [0, 0]), ("F32", [2], [0, 8])),
    "a shape that is negative": header(("F32", [-2, -1], [0, 8])),
    "a shape of floats": header(("F32", [2.0], [0, 8])),
    "a shape of bools": header(("F32", [True, 2], [0, 8])),
    "offsets that do not fit the shape": header(("F32", [1], [0, 8])),
    "offsets that overlap": header(("F32", [2], [0, 8]), ("F32", [2], [0, 8])),
    "offsets with a gap": header(("F32", [1], [4, 8])),
    "offsets before the content": header(("F32", [2], [-8, 0])),
    "bytes at the end": header(("F32", [1], [0, 4])),
    "a type that is unknown": header(("F7", [2], [0, 8])),
    "a list": (2).to_bytes(8, "little") + b"[]",
    "nesting": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "an entry of another kind": (7).to_bytes(8, "little") + b'{"a":1}',
    "a pickle": b"\x80\x04\x95" + bytes(20),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_tensors_that_promise_what_is_not_there(saved: Path, kind: str) -> None:
    write_folder(saved, "checkpoint", {"checkpoint.json": b"{}", "tensors.safetensors": HEADERS[kind]})
    refused(saved, "tensors.safetensors")


def test_a_manifest_that_is_large_is_not_read(saved: Path) -> None:
    os.truncate(saved / "manifest.json", 1 << 40)
    assert "expected at most 1000000 bytes, got 1099511627776" in refused(saved, "manifest.json")


def test_more_memory_than_there_is(saved: Path) -> None:
    """A file with a hole needs no room on the disk."""
    os.truncate(saved / "checkpoint.json", 1 << 43)
    body = read_manifest(saved, "checkpoint")
    del body["sha256"]
    body["files"]["checkpoint.json"]["size"] = 1 << 43
    (saved / "manifest.json").write_bytes(sealed_folder._sealed(body))
    assert "it needs more memory than is available" in refused(saved, "checkpoint.json")


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "12345678901234567890123", '"\\ud800"'])
def test_odd_json_is_only_json(text: str) -> None:
    assert parse_json(text.encode(), "x") == pytest.approx(json.loads(text), nan_ok=True)


# --- failing and dying ------------------------------------------------------------------------------------------------


def at_line(number: int, act: Callable[[], None]) -> Callable[..., Any]:
    """A trace function that acts before the ``number``-th line that runs in the module."""
    left = number

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != sealed_folder.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                act()
        return trace

    return trace


def lines_of_a_save(path: Path) -> int:
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != sealed_folder.__file__:
            return None
        count += event == "line"
        return trace

    traced(trace, lambda: save_checkpoint(path, NEW))
    save_checkpoint(path, OLD)
    return count


def traced(trace: Callable[..., Any], act: Callable[[], Any]) -> None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)


def forked(act: Callable[[], None]) -> int:
    """The id of a new process that does nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks next to threads, which the child does without
        child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


@pytest.fixture(params=["exchange", "no exchange"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On file systems with and without an exchange of names in one step; that they flush takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    if request.param == "no exchange":
        monkeypatch.setattr(sealed_folder, "_exchange", lambda one, other: False)
    return request.param


every_line = pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.faults)])


@pytest.mark.usefixtures("exchange")
@every_line
def test_killed_at_any_line_the_old_or_the_new_one_is_there(saved: Path, every: int) -> None:
    seen = []
    for line in range(1, lines_of_a_save(saved) + 1, every):

        def die(line: int = line) -> None:
            traced(at_line(line, lambda: os.kill(os.getpid(), signal.SIGKILL)), lambda: save_checkpoint(saved, NEW))

        assert os.waitpid(forked(die), 0)[1] == signal.SIGKILL, line
        seen.append(which(saved))
        save_checkpoint(saved, OLD)
        assert os.listdir(saved.parent) == ["c"], "what the dead left is swept away"
    assert seen == sorted(seen, reverse=True), "first the old one, then the new one"
    assert {*seen} == {"old", "new"}


@pytest.mark.usefixtures("exchange")
@every_line
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a line of `with` may fail to close
def test_where_any_line_fails_the_old_or_the_new_one_is_there(saved: Path, every: int) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    for line in range(1, lines_of_a_save(saved) + 1, every):
        with suppress(OSError):
            traced(at_line(line, fail), lambda: save_checkpoint(saved, NEW))
        which(saved)
        save_checkpoint(saved, OLD)
        assert os.listdir(saved.parent) == ["c"], line


class Calls:
    """Counts what a save asks of the disk: files opened and written, flushes, renames, folders made, files deleted.

    Before call number ``at``, ``act`` is called; before a write, half of the bytes are written.
    """

    def __init__(self, patch: pytest.MonkeyPatch, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.count, self.at, self.act = 0, at, act
        for name in ("open", "fsync", "rename", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, self.counted(vars(os)[name]))
        patch.setattr(sealed_folder, "_exchange", self.counted(sealed_folder._exchange))
        patch.setattr(sealed_folder, "open", self.open, raising=False)

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (self.note(), call(*args, **kwargs))[1]

    def note(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()

    def open(self, *args: Any, **kwargs: Any) -> Any:
        self.note()
        if "x" not in args[1]:
            return open(*args, **kwargs)
        calls = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                size = memoryview(data).nbytes
                if calls.count + 1 == calls.at:
                    super().write(memoryview(data).cast("B")[: size // 2])
                calls.note()
                return super().write(data)

        return io.BufferedWriter(Raw(args[0], "x"))


@pytest.fixture(params=["disk", "memory"])
def on_disk_or_in_memory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A checkpoint on the file system of temporary files, and on one in memory."""
    if not os.access(place := {"disk": "/tmp", "memory": "/dev/shm"}[request.param], os.W_OK):
        pytest.skip(f"no {place}")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield save_checkpoint(Path(folder) / "c", OLD)


def calls_of_a_save(path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        save_checkpoint(path, NEW)
    save_checkpoint(path, OLD)
    return calls.count


@pytest.mark.end_to_end
def test_killed_at_every_call_the_old_or_the_new_one_is_there(on_disk_or_in_memory: Path) -> None:
    saved, seen = on_disk_or_in_memory, []
    for number in range(1, calls_of_a_save(saved) + 1):

        def die(number: int = number) -> None:
            Calls(pytest.MonkeyPatch(), number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save_checkpoint(saved, NEW)

        assert os.waitpid(forked(die), 0)[1] == signal.SIGKILL, number
        seen.append(which(saved))
        save_checkpoint(saved, OLD)
        assert os.listdir(saved.parent) == ["c"], "what the dead left is swept away"
    assert seen == sorted(seen, reverse=True), "first the old one, then the new one"
    assert {*seen} == {"old", "new"}
    assert len(seen) > 20


@pytest.mark.parametrize(
    "error",
    [
        errno.ENOSPC,
        errno.EIO,
        *(pytest.param(e, marks=pytest.mark.faults) for e in (errno.EROFS, errno.EDQUOT, errno.EMFILE)),
    ],
)
def test_where_every_call_fails_the_old_or_the_new_one_is_there(
    on_disk_or_in_memory: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, message = on_disk_or_in_memory, list[str]()

    def fail() -> None:
        raise OSError(error, os.strerror(error))

    for number in range(1, calls_of_a_save(saved) + 1):
        with monkeypatch.context() as patch:
            Calls(patch, number, fail)
            try:
                save_checkpoint(saved, NEW)
            except OSError as raised:
                message.append(str(raised))
        which(saved)
        save_checkpoint(saved, OLD)
        assert os.listdir(saved.parent) == ["c"], number
    text = f"save('{saved}'): expected a folder to write to, got {os.strerror(error)}"
    assert {one.partition(" (")[0].partition(". ")[0] for one in message} == {text}
    assert len(message) > 10


@pytest.mark.parametrize("most", [0, 100, 400])
def test_a_full_disk_leaves_the_old_one(saved: Path, most: int) -> None:
    """A limit on the size of files is the full disk of a process."""
    read, write = os.pipe()

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        try:
            save_checkpoint(saved, NEW)
        except OSError as error:
            os.write(write, str(error).encode())

    os.waitpid(forked(fill), 0)
    os.close(write)
    with open(read) as message:
        text = message.read()
    assert text.startswith(f"save('{saved}'): expected a folder to write to, got File too large (0.0 MB to write, ")
    assert (os.listdir(saved.parent), which(saved)) == (["c"], "old")


def test_what_another_process_works_on_is_not_swept_away(saved: Path) -> None:
    held = saved.parent / f".c-{'0' * 32}"
    foreign = saved.parent / f".cc-{'0' * 32}"
    held.mkdir()
    foreign.mkdir()
    with sealed_folder._locked(held):
        save_checkpoint(saved, NEW)
        assert held.exists()
    save_checkpoint(saved, OLD)
    assert sorted(os.listdir(saved.parent)) == [foreign.name, "c"]


def test_an_interrupted_save_stands_in_for_what_is_missing(saved: Path) -> None:
    saved.rename(saved.parent / f".c-{'0' * 32}")
    assert which(saved) == "old"
    assert standing_in(saved.parent / "d") == saved.parent / "d"
    save_checkpoint(saved, NEW)
    assert (os.listdir(saved.parent), which(saved)) == (["c"], "new")


def test_the_earlier_folder_is_moved_if_it_is_to_be_kept(saved: Path) -> None:
    kept = saved.parent / "kept"
    for _ in range(2):
        save_checkpoint(saved, OLD)
        write_folder(saved, "checkpoint", {"checkpoint.json": b"{}"}, keep=kept)
        assert (which(kept), load_checkpoint(saved)) == ("old", {})
    assert sorted(os.listdir(saved.parent)) == ["c", "kept"]


def test_a_link_is_followed(saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to("c")
    assert save_checkpoint(link, NEW) == link
    assert (link.is_symlink(), which(saved), which(link)) == (True, "new", "new")


# --- at the same time ------------------------------------------------------------------------------------------------


def test_a_folder_that_is_replaced_by_an_equal_one_is_read_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two other saves come between the manifest and the files, and the second one writes what was there at first."""
    save_checkpoint(saved, OLD)
    reading, others = sealed_folder._verified, iter([NEW])

    def interrupted(*args: Any) -> Any:
        for other in others:
            save_checkpoint(saved, other)
            try:
                return reading(*args)
            finally:
                save_checkpoint(saved, OLD)
        return reading(*args)

    monkeypatch.setattr(sealed_folder, "_verified", interrupted)
    assert which(saved) == "old"


@pytest.mark.parametrize("writers", [1, 2])
def test_readers_next_to_writers_get_one_checkpoint(tmp_path: Path, writers: int) -> None:
    def save(number: int) -> None:
        tensors = {str(i): torch.full((50,), number) for i in range(20)}
        save_checkpoint(tmp_path / "c", {"number": number, "tensors": tensors})

    def save_for_ever() -> None:
        for number in count():
            save(number)

    save(0)
    processes = [forked(save_for_ever) for _ in range(writers)]
    try:
        seen = set()
        while len(seen) < 30:
            state = load_checkpoint(tmp_path / "c")
            assert all(bool((tensor == state["number"]).all()) for tensor in state["tensors"].values())
            seen.add(state["number"])
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    save_checkpoint(tmp_path / "c", OLD)
    assert os.listdir(tmp_path) == ["c"]


def test_json_with_more_values_than_any_state_is_not_parsed() -> None:
    with pytest.raises(DamagedFolder, match=r"x\.json: expected at most 4,194,304 values, got 4,194,305"):
        parse_json(b"[" + b"0," * (2**22 + 1) + b"0]", "x.json")


def test_a_save_succeeds_though_another_one_sweeps_its_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between the making of a folder and its lock is made certain here."""
    target = save_checkpoint(tmp_path / "c", {"x": torch.zeros(3)})
    mkdir, swept = Path.mkdir, list[Path]()

    def make_and_sweep_once(self: Path, *args: Any, **kwargs: Any) -> None:
        mkdir(self, *args, **kwargs)
        if self.name.startswith(".c-") and not swept:
            swept.append(self)
            sealed_folder._sweep(target.resolve())

    monkeypatch.setattr(Path, "mkdir", make_and_sweep_once)
    save_checkpoint(target, {"x": torch.ones(3)})
    assert len(swept) == 1
    assert torch.equal(load_checkpoint(target)["x"], torch.ones(3))
    assert [*tmp_path.iterdir()] == [target]
