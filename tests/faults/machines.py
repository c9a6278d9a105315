"""Machines of your own, on this one: each has its own network, processes, name, home, shared memory and Ray."""

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.waiting import wait_for

NEEDED = ("unshare", "nsenter", "ip", "mount", "hostname")


def can_be_made() -> bool:
    """Whether this system lets us: Linux, as root, outside of most containers."""
    if not all(map(shutil.which, NEEDED)) or os.geteuid() != 0:
        return False
    made = subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"], check=False)
    return made.returncode == 0


class Machine:
    """One of them: commands run there until it loses its power, which ends them all.

    Args:
        folder: For its home.
        name: Its name.
        address: Its address, on the cable of :func:`connect`.
    """

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.name, self.address, self.home = name, address, folder / name
        self.home.mkdir()
        namespaces = ["--net", "--mount", "--pid", "--uts"]
        self._power = subprocess.Popen(
            ["unshare", *namespaces, "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"],
            start_new_session=True,
        )
        children = Path(f"/proc/{self._power.pid}/task/{self._power.pid}/children")
        wait_for(lambda: children.read_text().strip())
        self.first = children.read_text().strip()  # its first process, whose networks and mounts all others share
        wait_for(lambda: Path(f"/proc/{self.first}/comm").read_text().strip() == "sleep")
        ours = (
            f"hostname {name} && mkdir -p /tmp/ray && mount -t tmpfs {name} /tmp/ray && mount -t tmpfs {name} /dev/shm"
        )
        self.run(ours)
        self.run("ip link set lo up")

    def start(self, command: str, **env: str) -> "subprocess.Popen[str]":
        """A command of the shell, begun there."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.Popen(
            ["nsenter", "--target", self.first, "--net", "--mount", "--pid", "--uts", "bash", "-c", command],
            env={**kept, "HOME": str(self.home), "RAY_TMPDIR": "/tmp", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, timeout_s: float = 120, **env: str) -> str:
        """What a command of the shell prints there.

        Raises:
            AssertionError: If it failed, with all it printed.
        """
        process = self.start(command, **env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        assert process.returncode == 0, f"{command} on {self.name}: {process.returncode}\n{out}\n{err}"
        return out

    def cut_off(self) -> None:
        """Pull the cable: nothing is said to anybody."""
        self.run("ip link set cable down")

    def close(self) -> None:
        """Power off."""
        self._power.kill()
        self._power.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(first: Machine, second: Machine) -> None:
    """Put a cable between two machines, in place of the one that they may have had."""
    ends = [f"rl{machine.first}" for machine in (first, second)]
    subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
    for machine, end in zip((first, second), ends, strict=True):
        machine.run("ip link delete cable 2> /dev/null || true")
        subprocess.run(["ip", "link", "set", end, "netns", machine.first, "name", "cable"], check=True)
        machine.run(f"ip addr add {machine.address}/24 dev cable && ip link set cable up")
