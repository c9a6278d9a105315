"""Workers in processes of their own: calls, errors as data, deaths, hangs, restarts, room."""

import functools
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from catalog import encoder_rules, register_model
from catalog.registry import models
from rlmodule.distributed.failures import Failure, WorkerFailed
from rlmodule.distributed.ray_cluster import check_resources, start_ray
from rlmodule.distributed.ray_workers import MAX_IN_FLIGHT, Answer, RayWorkers
from rlmodule.distributed.restarts import RestartPolicy, WorkerAccounts
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.usefixtures("ray_started")

TIMEOUT_S = 2.0
"""Of tests in which a worker shall be given up; others have time for machines that are busy."""


class Toy:
    """A worker that does as its calls say, also badly."""

    def __init__(self, index: int, incarnation: int) -> None:
        self.index, self.incarnation, self.progress = index, incarnation, 0

    def who(self) -> tuple[int, int, int]:
        return self.index, self.incarnation, os.getpid()

    def add(self, a: Any, b: Any = 0, c: Any = 0) -> Any:
        return a + b + c

    def fail(self, error: BaseException) -> None:
        raise error

    def end(self, how: str) -> None:
        if how == "exit":
            os._exit(0)
        if how == "abort":
            os.abort()
        os.kill(os.getpid(), signal.SIGKILL)

    def sleep(self, seconds: float, tick: float | None = None) -> str:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, tick or left))
            self.progress += tick is not None
        return "awake"

    def threads(self) -> int:
        return torch.get_num_threads()

    def registered(self) -> tuple[list[str], Any]:
        return [rule.name for rule in encoder_rules], models.find("net of a script", "custom_model")

    def stop(self) -> None:
        self.progress = -1


class Unreadable(Exception):
    def __str__(self) -> str:
        raise AttributeError("no text")


def not_in(pid: int) -> Any:
    if os.getpid() == pid:
        raise LookupError("not here")
    return Unmakeable(pid)


class Unmakeable:
    """Cannot be rebuilt in the process that it comes from."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = os.getpid() if pid is None else pid

    def __reduce__(self) -> Any:
        return not_in, (self.pid,)


class RaisesWhenMade(Toy):
    def __init__(self, index: int, incarnation: int) -> None:
        raise LookupError("no such simulator")


class DiesWhenMadeAgain(Toy):
    def __init__(self, index: int, incarnation: int) -> None:
        super().__init__(index, incarnation)
        if incarnation > 0:
            os._exit(1)


class Doubling(Toy):
    def __init__(self, double: Any, index: int, incarnation: int) -> None:
        super().__init__(index, incarnation)
        self.who = lambda: double(21)


class HangsInStop(Toy):
    def stop(self) -> None:
        time.sleep(3600)


@pytest.fixture
def made() -> Iterator[Any]:
    groups: list[RayWorkers] = []

    def make(factory: Any = Toy, size: int = 1, max_restarts: int = 2, **settings: Any) -> RayWorkers:
        settings = {"num_cpus": 0.1, "timeout_s": 30.0} | settings
        restarts, accounts = RestartPolicy(max_restarts), WorkerAccounts()
        groups.append(RayWorkers("toy", size, factory, restarts=restarts, accounts=accounts, **settings))
        return groups[-1]

    yield make
    for group in groups:
        group.stop()


@pytest.fixture(scope="module")
def pair() -> Iterator[RayWorkers]:
    """Two workers for all tests; who ends one waits for the next."""
    how: Any = {"restarts": RestartPolicy(2), "accounts": WorkerAccounts()}
    group = RayWorkers("toy", 2, Toy, num_cpus=0.1, timeout_s=PATIENCE_S, **how)
    yield group
    group.stop()


def wait_until_up(group: RayWorkers, worker: int = 0) -> None:
    def is_up() -> bool:
        group.collect(1.0)
        return group.is_up(worker)

    wait_for(is_up)
    call(group, worker, "sleep", 0.02, 0.01)  # gets on: what failed before does not count


@pytest.fixture
def impatient(pair: RayWorkers, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayWorkers]:
    """The same workers, which are soon given up. The first one may end."""
    monkeypatch.setattr(pair, "_timeout_s", TIMEOUT_S)
    monkeypatch.setattr(pair, "_poll_s", TIMEOUT_S / 4)
    yield pair
    monkeypatch.undo()
    wait_until_up(pair)


def one(answers: list[Answer]) -> Answer:
    (answer,) = answers
    return answer


def call(group: RayWorkers, worker: int, method: str, *args: Any) -> Answer:
    return one(group.call(method, {worker: args}))


def call_both(group: RayWorkers, method: str, *args: Any) -> list[Any]:
    return [answer.value for answer in group.call(method, {0: args, 1: args})]


def test_workers_answer(pair: RayWorkers) -> None:
    assert call_both(pair, "add", torch.ones(1000), 2, torch.arange(1000))[1][-1] == 1002
    assert call(pair, 1, "add", 1) == Answer(1, 1)
    assert pair.in_flight(0) == 0
    pair.submit(1, "who")
    answer = one(pair.collect())
    assert (answer.worker, answer.value[:2]) == (1, (1, 0))


def test_what_is_shared_is_the_last_argument_and_its_bytes_are_counted(pair: RayWorkers) -> None:
    shared = pair.share(torch.arange(1000.0))
    for worker in range(2):
        pair.submit(worker, "add", 1.0, shared=shared)
        assert float(one(pair.collect()).value.sum()) == 500_500.0
    assert 2 * 4000 < pair.accounts.num_bytes_shared < 2 * 5000


def test_a_worker_takes_two_calls_at_once_and_no_third(pair: RayWorkers) -> None:
    group = pair
    group.submit(0, "sleep", 0.3)
    group.submit(0, "add", 1)
    with pytest.raises(RuntimeError, match="expected a worker that takes a call now, got toy 0, which does not"):
        group.submit(0, "who")
    answers: list[Answer] = []
    while len(answers) < MAX_IN_FLIGHT:
        answers += group.collect()
    assert answers == [Answer(0, "awake"), Answer(0, 1)]


def test_answers_to_others_are_kept(pair: RayWorkers) -> None:
    pair.submit(0, "add", 1, 2)
    assert call_both(pair, "add", 4) == [4, 4]
    assert one(pair.collect()) == Answer(0, 3)
    pair.keep([Answer(1, 7)])
    assert one(pair.collect()) == Answer(1, 7)
    pair.submit(1, "add", 5)
    assert [answer.worker for answer in pair.call("who", {1: (), 0: ()})] == [1, 0]
    assert one(pair.collect()) == Answer(1, 5)


def test_an_error_comes_as_data_and_the_worker_goes_on(pair: RayWorkers) -> None:
    def fail(error: BaseException) -> Any:
        return call(pair, 0, "fail", error)

    pid = pair.pids()[0]
    failure = fail(ZeroDivisionError("by nought")).failure
    assert failure is not None
    assert (failure.kind, failure.type, failure.message, failure.final) == (
        "raised",
        "ZeroDivisionError",
        "by nought",
        False,
    )
    assert "test_ray_workers.py" in failure.traceback
    assert fail(KeyError()).failure.message == "(no message)"
    assert fail(SystemExit(0)).failure.type == "SystemExit"
    assert len(fail(ValueError("long " * 100_000)).failure.message) < 30_000
    assert fail(Unreadable()).failure.type == "Unreadable"
    assert call(pair, 0, "who").value[2] == pid


ENDS = [
    ("kill", "SIGKILL"),
    pytest.param("exit", "os._exit(0)", marks=pytest.mark.faults),
    pytest.param("abort", "Aborted", marks=pytest.mark.faults),
]


@pytest.mark.parametrize(("how", "expected_text"), ENDS)
def test_a_worker_that_dies_is_told_and_made_again(pair: RayWorkers, how: str, expected_text: str) -> None:
    restarts, incarnation = pair.accounts.num_restarts, pair.incarnation(1)
    pair.submit(1, "end", how)
    pair.submit(1, "add", 1)
    failures = [answer.failure for answer in pair.collect() if answer.failure is not None]
    assert [failure.kind for failure in failures] == ["died", "died"]  # all its calls have failed
    assert expected_text in failures[0].message
    assert not pair.is_up(1)
    assert call(pair, 0, "add", 1).value == 1  # the other goes on meanwhile
    wait_until_up(pair, 1)
    assert call(pair, 1, "who").value[1] == incarnation + 1
    assert pair.accounts.num_restarts == restarts + 1


@pytest.mark.end_to_end
def test_who_raised_is_made_again_in_its_process_the_first_time(
    pair: RayWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    pid, incarnation = pair.pids()[0], pair.incarnation(0)
    for same in (True, False):
        failure = call(pair, 0, "fail", ValueError("no")).failure
        assert failure is not None
        assert not pair.restart_later(0, failure).final
        assert not pair.is_up(0)
        pair.wait_until_up()
        assert (pair.pids()[0] == pid) is same
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("toy 0 failed; it restarts in 0.1 s: ValueError: no\n\nTraceback")
    assert second == "toy 0 failed; it restarts in 0.3 s, in a new process: ValueError: no"
    assert call(pair, 0, "who").value[1] == incarnation + 2
    wait_until_up(pair)


@pytest.mark.end_to_end
def test_a_slow_worker_that_gets_on_is_waited_for(impatient: RayWorkers) -> None:
    assert call(impatient, 0, "sleep", 2 * TIMEOUT_S, 0.1).value == "awake"


@pytest.mark.end_to_end
def test_a_worker_nobody_looked_after_is_not_taken_for_hung(impatient: RayWorkers) -> None:
    impatient.submit(0, "sleep", 1.5 * TIMEOUT_S, 0.1)
    time.sleep(1.25 * TIMEOUT_S)
    assert one(impatient.collect()).value == "awake"


@pytest.mark.end_to_end
def test_a_worker_without_progress_is_found_and_replaced(impatient: RayWorkers) -> None:
    """A pause before the call gives no more time to it."""
    impatient._watched_at -= 1000.0  # nobody looked for so long
    impatient.submit(0, "sleep", 60.0)
    impatient.collect(0.0)
    assert impatient._processes[0].sign_of_life_at <= time.monotonic()
    failure = one(impatient.collect()).failure
    assert failure is not None
    assert failure.kind == "hung"
    assert re.fullmatch(r"no progress for 2 s, in sleep \(.*test_ray_workers\.py:\d+\)", failure.message)


def test_workers_compute_on_as_many_threads_as_they_have_cpus(pair: RayWorkers) -> None:
    assert call(pair, 0, "threads").value == 1


@pytest.mark.faults
def test_a_crash_loop_ends(made: Any) -> None:
    group = made(DiesWhenMadeAgain, max_restarts=1)
    assert not call(group, 0, "end", "kill").failure.final  # type: ignore[union-attr]
    failures = []
    while not group.is_gone(0):
        failures += [answer.failure for answer in group.collect()]
    assert [failure.final for failure in failures] == [True]
    assert group.accounts.num_restarts == 1
    assert group.collect() == []  # there is nothing to wait for


def test_delays_grow_and_end() -> None:
    policy = RestartPolicy(5)
    delays = [policy.delay_after_failure() for _ in range(6)]
    assert delays[:5] == pytest.approx([0.1, 0.3, 0.9, 2.7, 8.1])
    assert delays[5] is None
    assert RestartPolicy(0).delay_after_failure() is None


def test_progress_of_a_worker_forgives_its_failures_alone() -> None:
    policy = RestartPolicy(2)
    for worker in (0, 1, 0, 1):
        assert policy.delay_after_failure(worker) is not None
    policy.forgive(1)
    policy.forgive(2)  # which has not failed
    assert [policy.delay_after_failure(worker) for worker in (0, 1)] == [None, pytest.approx(0.1)]


def test_a_run_goes_on_without_those_it_may_lose_while_one_is_left() -> None:
    assert [RestartPolicy(0, may_lose=True).goes_on_without_failed(num_left) for num_left in (2, 1, 0)] == [
        True,
        True,
        False,
    ]
    assert not RestartPolicy(5).goes_on_without_failed(2)


@pytest.mark.faults
def test_without_restarts_the_first_failure_is_final(made: Any) -> None:
    group = made(max_restarts=0)
    assert call(group, 0, "end", "kill").failure.final  # type: ignore[union-attr]
    assert group.is_gone(0)
    group.restart(0)
    wait_until_up(group)
    assert call(group, 0, "who").value[1] == 1


@pytest.mark.end_to_end
def test_a_worker_that_cannot_be_made_is_told_once(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(WorkerFailed, match=r"LookupError: no such simulator. num_toys=0 debugs it"):
        made(RaisesWhenMade)
    assert not caplog.records  # nothing else happens


def test_an_error_is_told_before_its_traceback() -> None:
    failure = Failure("raised", "EnvError", "env 3: got `it'.\n\nTraceback of the env", traceback="of the worker")
    text = str(WorkerFailed("env runner 0", failure, "Fix it."))
    expected_text = "env runner 0: expected no error, got EnvError: env 3: got `it'. Fix it."
    assert text == f"{expected_text}\n\nTraceback of the env\n\nof the worker"


@pytest.mark.faults
def test_a_slow_start_is_no_want_of_room(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the worker holds the CPUs itself. It keeps them while another one is made in its place."""
    monkeypatch.setattr("rlmodule.distributed.ray_workers.PLACING_TIMEOUT_S", 0.3)
    group = made(num_cpus=7, max_restarts=0)
    group.restart(0)
    assert group.collect() == []  # it came up
    assert group.is_up(0)


@pytest.mark.end_to_end
def test_who_finds_no_room_is_told_what_to_do(
    made: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(num_cpus=5)
    monkeypatch.setattr("rlmodule.distributed.ray_workers.PLACING_TIMEOUT_S", 0.5)
    expected_text = r"it asks for 5 CPUs, and [\d.]+ of 8 CPUs are free. Wait .*lower num_toys.* num_cpus_per_toy=0\.5"
    with pytest.raises(WorkerFailed, match=expected_text):
        made(num_cpus=5)
    assert not caplog.records


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")  # open files, for one
def test_room_is_given_back_also_by_who_does_not_stop() -> None:
    import ray

    how: Any = {"restarts": RestartPolicy(2), "accounts": WorkerAccounts()}
    group = RayWorkers("toy", 1, Toy, num_cpus=6, timeout_s=30.0, **how)
    assert ray.available_resources().get("CPU", 0.0) < 3
    del group
    gc.collect()
    wait_for(lambda: ray.available_resources()["CPU"] >= 6)


def test_processes_have_the_names_of_their_workers(pair: RayWorkers) -> None:
    for pid in pair.pids():
        assert Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::Toy")


def test_workers_meet_on_the_loopback_if_they_are_on_one_machine(
    pair: RayWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pair.address == "127.0.0.1"
    for process, address in zip(pair._processes, ("10.0.0.1", "10.0.0.1"), strict=True):  # not that of the driver
        monkeypatch.setattr(process, "address", address)
    assert pair.address == "127.0.0.1"
    monkeypatch.setattr(pair._processes[1], "address", "10.0.0.2")
    assert pair.address == "10.0.0.1"


NICENESS = """
import os
from rlmodule.distributed.ray_cluster import start_ray

os.nice(2)
start_ray()
import ray

print(os.nice(0), ray.get(ray.remote(lambda: os.nice(0)).remote()))
"""


@pytest.mark.faults
def test_workers_of_a_ray_of_ours_have_the_priority_of_the_driver() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", NICENESS], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 2"


def test_a_priority_that_the_user_gives_workers_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "3")
    start_ray()
    assert dict(os.environ)["RAY_worker_niceness"] == "3"


@pytest.mark.parametrize(
    ("cause", "expected_text"),
    [("InvalidAuthToken: Authentication token is missing", "RAY_AUTH_MODE=token"), ("timed out", "`ray status` shows")],
)
def test_a_cluster_that_does_not_let_us_in_is_told(
    cause: str, expected_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def init(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster") from RuntimeError(cause)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConnectionError, match=rf"RAY_ADDRESS=10\.0\.0\.1:6379: expected .*{expected_text}"):
        start_ray()


def test_a_factory_that_cannot_be_pickled_is_told(made: Any) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"toy: expected a value that can be sent .* cannot be pickled .*lock"):
        made(lambda index, incarnation: lock)


@pytest.fixture
def registries() -> Iterator[None]:
    """What the test registers is forgotten after it."""
    rules, known = encoder_rules._rules.copy(), models._known.copy()
    yield
    encoder_rules._rules[:], models._known = rules, known


@pytest.mark.usefixtures("registries")
def test_workers_know_what_a_script_registers(made: Any) -> None:
    class Net(nn.Linear):  # travels by value, as a class of a script does
        pass

    register_model("net of a script")(Net)
    encoder_rules.register(spaces.Box, name="rule of a script")(lambda space, model_config, node: None)
    rules, net = call(made(), 0, "registered").value
    assert rules == [rule.name for rule in encoder_rules]
    assert rules[0] == "rule of a script"
    assert net is Net
    lock = threading.Lock()
    encoder_rules.register(spaces.Box, name="locked")(lambda space, model_config, node: lock)
    with pytest.raises(TypeError, match=r"toy, what is registered: .*lock"):
        made()


def test_workers_look_for_modules_where_the_script_does(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_a_script.py").write_text("def double(number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    double = importlib.import_module("module_of_a_script").double
    assert call(made(functools.partial(Doubling, double)), 0, "who").value == 42


@pytest.mark.parametrize("name", ["CPU", "GPU"])
def test_more_than_the_cluster_has_is_refused_at_once(name: str) -> None:
    remedy = {"CPU": r"num_cpus_per_env_runner=0\.5 .*ray.init\(num_cpus=999\)", "GPU": "num_gpus_per_learner=0"}[name]
    expected_text = rf"num_env_runners=999: expected at most the [\d.]+ {name}s .*, got 999 {name}s\. .*{remedy}"
    with pytest.raises(ValueError, match=expected_text):
        check_resources("num_env_runners=999", (999, {name: 1.0}))


def test_a_worker_must_fit_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    nodes = [
        {"Alive": alive, "Resources": {"CPU": cpus}}
        for alive, cpus in ((True, 4.0), (True, 4.0), (True, 3.0), (False, 64.0))
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    check_resources("num_learners=2", (2, {"CPU": 4.0, "GPU": 0.0}), (1, {}), (0, {"CPU": 99.0}))
    expected_text = r"num_learners=1: expected workers that each fit on one node: 3 CPUs; 4 CPUs, got one with 5 CPUs"
    with pytest.raises(ValueError, match=expected_text):
        check_resources("num_learners=1", (1, {"CPU": 5.0, "GPU": 0.0}))


def test_an_answer_that_cannot_be_read_here_is_told_and_the_worker_goes_on(pair: RayWorkers) -> None:
    pid = pair.pids()[0]
    failure = call(pair, 0, "add", [Unmakeable()], [], []).failure
    assert failure is not None
    assert (failure.kind, failure.type, failure.message) == ("raised", "LookupError", "not here")
    assert pair.in_flight(0) == 0
    assert call(pair, 0, "who").value[2] == pid


@pytest.mark.end_to_end
def test_an_answer_that_ray_lost_is_told_in_its_words(pair: RayWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.exceptions import GetTimeoutError

    def get(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        raise GetTimeoutError("the answer is late\nand more")

    pair.submit(0, "add", 1)
    monkeypatch.setattr(ray, "get", get)
    failure = one(pair.collect()).failure
    assert failure is not None
    assert (failure.kind, failure.type, failure.message) == ("died", "GetTimeoutError", "the answer is late")
    wait_until_up(pair)


@pytest.mark.faults
def test_a_worker_that_hangs_when_it_is_stopped_is_ended(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with an env whose ``close()`` hangs: also where another is to take its place in its process."""
    group = made(HangsInStop, timeout_s=TIMEOUT_S)
    (pid,) = group.pids()
    monkeypatch.setattr("rlmodule.distributed.ray_workers.SPAWNING_TIMEOUT_S", TIMEOUT_S)
    group.restart_later(0, call(group, 0, "fail", ValueError("no")).failure)
    answers: list[Answer] = []
    while not answers:
        answers = group.collect()
    monkeypatch.undo()
    failure = one(answers).failure
    assert failure is not None
    assert failure.kind == "hung"
    wait_until_up(group)
    assert group.pids() != [pid]
    group.stop()
