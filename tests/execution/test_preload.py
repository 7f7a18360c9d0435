"""lowerdeck.execution.preload: real servers and clients, with nothing heavy to import."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lowerdeck.execution.environment import fixed_environment
from lowerdeck.runtime.child_processes import RERUN
from tests.conftest import end_servers
from tests.project import REPOSITORY, SOURCES

NO_SERVER = 99
ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can choose a group, or give a folder away")

SERVER = """
import sys
from lowerdeck.execution import preload
address, later = preload.socket_address(), ["no_such_module", "tabnanny"]
preload.serve(address, ["colorsys", *sys.argv[2:]], idle_s=float(sys.argv[1]), first=["chunk"], later=later)
"""
CLIENT = f"""
import sys
from lowerdeck.execution import preload
code = preload.run(sys.argv[1], 60, after_first=sys.argv[2:] == ["after_first"])
sys.exit({NO_SERVER} if code is None else code)
"""


class Host:
    """A folder for temporary files, in which a server listens, and one in which clients run."""

    def __init__(self, temporary: Path, work: Path) -> None:
        self.temporary, self.work = temporary, work
        self.processes: list[subprocess.Popen[str]] = []

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOWERDECK_")}
        return kept | {"TMPDIR": str(self.temporary), "PYTHONPATH": SOURCES} | variables

    def module(self, name: str, source: str) -> str:
        (self.work / f"{name}.py").write_text(source)
        return name

    def serve(self, idle_s: float = 60, *modules: str) -> subprocess.Popen[str]:
        server = self._start([SERVER, str(idle_s), *modules], {})
        wait_for(lambda: self.answers() or server.poll() is not None)
        return server

    def client(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return self._start([CLIENT, *arguments], variables)

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        client = self.client(*arguments, **variables)
        output, errors = client.communicate("typed", timeout=60)
        return client.returncode, output, errors

    def folder(self) -> Path:
        return self.temporary / f"lowerdeck-{os.getuid()}"

    def sockets(self) -> list[Path]:
        return list(self.folder().glob("*.sock"))

    def answers(self) -> bool:
        for address in self.sockets():
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(str(address)) == 0:
                    return True
        return False

    def _start(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", *command],
            cwd=self.work,
            env=self.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    # Not below tmp_path: addresses of sockets are limited to 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="ld-"))
    started = Host(temporary, tmp_path)
    yield started
    for process in started.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    shutil.rmtree(temporary)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_in(path: Path) -> int:
    wait_for(lambda: path.is_file() and path.read_text().endswith("\n"))
    return int(path.read_text())


SLEEPER = """
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "300"])
pathlib.Path("child").write_text(f"{child.pid}\\n")
pathlib.Path("stage").write_text(f"{os.getpid()}\\n")
time.sleep(300)
"""


def test_a_module_runs_with_the_folder_arguments_variables_and_streams_of_its_client(host: Host) -> None:
    server = host.serve()
    name = host.module(
        "show",
        "import os, sys\n"
        "print(__name__, os.getcwd(), sys.argv[1:], os.environ['COLOUR'], 'UNSET' in os.environ, input())\n"
        "print('colorsys' in sys.modules, 'lowerdeck.stage' in sys.modules, os.getppid())\n"
        "print('to stderr', file=sys.stderr)",
    )
    code, output, errors = host.run(name, "--flag", "two words", COLOUR="green")
    assert code == 0
    assert output.splitlines() == [
        f"__main__ {host.work} ['show', '--flag', 'two words'] green False typed",
        f"True False {server.pid}",
    ]
    assert errors == "to stderr\n"


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no such target')", 1, "no such target\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 256 - signal.SIGSEGV, ""),
    ],
)
def test_exit_codes_and_messages_are_those_of_the_module(host: Host, source: str, code: int, message: str) -> None:
    host.serve()
    assert host.run(host.module("ending", source)) == (code, "", message)


def test_an_error_of_the_module_is_a_traceback_and_exit_code_1(host: Host) -> None:
    host.serve()
    code, _, errors = host.run(host.module("failing", "1 / 0"))
    assert code == 1
    assert errors.startswith("Traceback")
    assert "ZeroDivisionError" in errors


def test_a_module_that_does_not_exist_is_said(host: Host) -> None:
    host.serve()
    code, _, errors = host.run("nowhere")
    assert code == 1
    assert "nowhere" in errors


def test_sources_are_read_as_they_are_now(host: Host) -> None:
    host.serve()
    name = host.module("main", "import library; print(library.VALUE)")
    host.module("library", "VALUE = 1")
    assert host.run(name)[1] == "1\n"
    host.module("library", "VALUE = 'changed'")
    assert host.run(name)[1] == "changed\n"


def test_a_killed_client_takes_its_stage_with_it_and_the_server_goes_on(host: Host) -> None:
    server = host.serve()
    client = host.client(host.module("sleeper", SLEEPER))
    stage, child = pid_in(host.work / "stage"), pid_in(host.work / "child")
    client.kill()
    wait_for(lambda: not is_running(stage) and not is_running(child))
    assert host.run(host.module("after", "print('served')")) == (0, "served\n", "")
    assert server.poll() is None


def test_a_killed_server_is_said_and_nothing_is_run_twice(host: Host) -> None:
    server = host.serve()
    client = host.client(host.module("sleeper", "open('runs', 'a').write('x')\n" + SLEEPER))
    stage, child = pid_in(host.work / "stage"), pid_in(host.work / "child")
    server.kill()
    server.wait()
    os.kill(stage, signal.SIGKILL)  # a stage asks the kernel to end it then; this module does not
    os.kill(child, signal.SIGKILL)
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 1
    assert "sleeper: the preload server was ended while it ran this stage" in errors
    assert (host.work / "runs").read_text() == "x"


def test_two_clients_are_served_at_once(host: Host) -> None:
    host.serve()
    source = (
        "import pathlib, sys, time\n"
        "mine, other = map(pathlib.Path, sys.argv[2:])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "print('met')"
    )
    name = host.module("meeting", source)
    clients = [host.client(name, "a", "b"), host.client(name, "b", "a")]
    assert [client.communicate(timeout=60)[0] for client in clients] == ["met\n", "met\n"]


def test_what_later_stages_need_is_imported_while_the_first_one_runs(host: Host) -> None:
    host.serve()
    text = "import sys, time; print([name in sys.modules for name in ('colorsys', 'tabnanny')]); time.sleep(0.5)"
    stage = host.module("stage", text)
    assert [host.run(stage)[1] for _ in range(2)] == ["[True, False]\n", "[True, True]\n"]


def test_a_module_that_fails_when_it_is_imported_is_left_to_its_stages(host: Host) -> None:
    """Vela formats docstrings, which PYTHONOPTIMIZE=2 drops."""
    host.serve(60, host.module("failing", "None.format()"), "tabnanny")
    stage = host.module("stage", "import sys; print([name in sys.modules for name in ('failing', 'tabnanny')])")
    assert host.run(stage) == (0, "[False, True]\n", "")


def test_a_stage_that_needs_only_the_first_modules_does_not_wait_for_the_others(host: Host) -> None:
    others = [host.module(f"part_{number}", "import time; time.sleep(0.1)") for number in range(60)]
    host.serve(60, *others)
    stage = host.module("stage", f"import sys; print([name in sys.modules for name in ('chunk', '{others[-1]}')])")
    assert host.run(stage, "after_first")[1] == "[True, False]\n"
    assert host.run(stage)[1] == "[True, True]\n"


@pytest.mark.parametrize("text", [b"rubbish", b"[1, 2]"])
def test_a_client_that_talks_rubbish_is_ignored(host: Host, text: bytes) -> None:
    server = host.serve()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(host.sockets()[0]))
        socket.send_fds(connection, [len(text).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(text)
        assert connection.recv(1) == b""
    assert host.run(host.module("after", "print('served')"))[:2] == (0, "served\n")
    assert server.poll() is None


def test_an_idle_server_ends_and_leaves_no_socket(host: Host) -> None:
    server = host.serve(idle_s=0.1)
    assert server.wait(timeout=60) == 0
    assert host.sockets() == []
    assert host.run(host.module("late", "pass"))[0] == NO_SERVER


def test_a_server_with_work_is_not_idle(host: Host) -> None:
    host.serve(idle_s=1)
    assert host.run(host.module("longer", "import time; time.sleep(2); print('done')"))[:2] == (0, "done\n")


def test_a_second_server_leaves_the_first_alone(host: Host) -> None:
    first = host.serve()
    second = host.serve()
    assert second.wait(timeout=60) == 0
    assert first.poll() is None
    assert host.run(host.module("after", "import os; print(os.getppid())"))[1] == f"{first.pid}\n"


def test_a_socket_that_a_killed_server_left_does_no_harm(host: Host) -> None:
    first = host.serve()
    first.kill()
    first.wait()
    assert len(host.sockets()) == 1
    assert host.run(host.module("between", "pass"))[0] == NO_SERVER
    second = host.serve()
    assert host.run(host.module("after", "import os; print(os.getppid())"))[1] == f"{second.pid}\n"


def test_the_switch_does_without_a_server(host: Host) -> None:
    host.serve()
    assert host.run(host.module("unused", "pass"), LOWERDECK_PRELOAD="0")[0] == NO_SERVER


@pytest.mark.parametrize("variable", sorted({*fixed_environment(), "OMP_NUM_THREADS", "LD_PRELOAD", "TZ"}))
def test_a_server_serves_no_client_whose_libraries_would_behave_otherwise(host: Host, variable: str) -> None:
    host.serve()
    name = host.module("unused", "pass")
    assert host.run(name)[0] == 0
    assert host.run(name, **{variable: "" if variable == "LD_PRELOAD" else "7"})[0] == NO_SERVER


@pytest.mark.parametrize(
    "wrapper",
    [
        f"taskset -c {min(os.sched_getaffinity(0))}" if len(os.sched_getaffinity(0)) > 1 else "chrt -b 0",
        "nice -n 10",
        "prlimit --nofile=200",
        "prlimit --as=8000000000:",
        pytest.param("setpriv --regid=100 --keep-groups", marks=ONLY_ROOT),
        pytest.param("setpriv --groups=100", marks=ONLY_ROOT),
    ],
)
def test_a_server_serves_no_client_with_other_processors_limits_groups_or_priority(host: Host, wrapper: str) -> None:
    """A fork has those of the server, whoever asks for it, and cannot raise them again."""
    host.serve()
    name = host.module("unused", "pass")
    command = [*wrapper.split(), sys.executable, "-c", CLIENT, name]
    done = subprocess.run(command, cwd=host.work, env=host.environment(), check=False, timeout=60)
    assert (done.returncode, host.run(name)[0]) == (NO_SERVER, 0)


def test_a_server_serves_every_copy_of_the_code_with_that_copy(host: Host) -> None:
    server = host.serve()
    name = host.module("which", "import os, stages\nprint(stages.__file__, os.getppid())")
    for copy in (host.work / "one", host.work / "other"):
        (copy / "stages").mkdir(parents=True)
        (copy / "stages" / "__init__.py").touch()
        path = os.pathsep.join((str(copy), SOURCES))
        assert host.run(name, PYTHONPATH=path)[1] == f"{copy / 'stages' / '__init__.py'} {server.pid}\n"


@pytest.mark.parametrize("holds", ["torch/__init__.py", "torch-0.dist-info/METADATA"])
def test_a_server_serves_no_client_that_finds_other_libraries(host: Host, holds: str) -> None:
    host.serve()
    name = host.module("unused", "pass")
    folder = host.work / "site"
    if holds.endswith("METADATA"):  # the package installed among others
        (folder / "lowerdeck").mkdir(parents=True)
    (folder / holds).parent.mkdir(parents=True)
    (folder / holds).touch()
    assert host.run(name, PYTHONPATH=os.pathsep.join((SOURCES, str(folder))))[0] == NO_SERVER


LEAVING = """
import os, pathlib, time
if not os.fork():
    os.setsid()
    os.closerange(0, 3)
    pathlib.Path("left").write_text(f"{os.getpid()}\\n")
    time.sleep(300)
"""


def test_a_process_that_a_stage_leaves_behind_holds_nothing_of_the_server(host: Host) -> None:
    first = host.serve()
    waiting = host.client(host.module("sleeper", SLEEPER))
    stage, child = pid_in(host.work / "stage"), pid_in(host.work / "child")
    assert host.run(host.module("leaving", LEAVING))[0] == 0
    left = pid_in(host.work / "left")
    try:
        first.kill()
        for pid in (stage, child):
            os.kill(pid, signal.SIGKILL)
        assert "was ended while it ran this stage" in waiting.communicate(timeout=20)[1]
        second = host.serve()
        assert host.run(host.module("after", "import os; print(os.getppid())"))[1] == f"{second.pid}\n"
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o701])
def test_a_folder_that_others_can_enter_is_refused(host: Host, mode: int) -> None:
    host.serve()
    name = host.module("unused", "print('must not run')")
    host.folder().chmod(mode)
    assert host.run(name) == (NO_SERVER, "", "")


def test_a_link_in_place_of_the_folder_is_refused(host: Host) -> None:
    host.serve()
    name = host.module("unused", "print('must not run')")
    moved = host.folder().rename(host.temporary / "elsewhere")
    host.folder().symlink_to(moved)
    assert host.run(name) == (NO_SERVER, "", "")


@ONLY_ROOT
def test_a_folder_of_somebody_else_is_refused(host: Host) -> None:
    host.serve()
    name = host.module("unused", "print('must not run')")
    os.chown(host.folder(), 65534, 65534)
    assert host.run(name) == (NO_SERVER, "", "")


def test_track_finds_mlflow_imported_as_the_project_wants_it(host: Host, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: end_servers(host.temporary))
    name = host.module("recorder", "import os, sys\nprint('mlflow.tracking' in sys.modules, 'torch' in sys.modules)\n")
    start = "from lowerdeck.execution import preload\npreload.start(preload.TRACKING)"
    subprocess.run([sys.executable, "-c", start], env=host.environment(), check=True)
    wait_for(host.answers)
    client = CLIENT.replace("60,", "60, preload.TRACKING,")
    command = [sys.executable, "-c", client, name]
    done = subprocess.run(command, env=host.environment(), cwd=host.work, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True False\n")
    assert host.run(name)[0] == NO_SERVER, "the stages that lower find no server of theirs"


@pytest.mark.parametrize("mask", ["022", "027", "077"])
def test_a_stage_has_the_umask_of_its_client(host: Host, mask: str) -> None:
    """And not the one of the server, which another command may have started."""
    host.serve()
    name = host.module("masked", f"import os; mask = os.umask(0); print(f'{{mask:03o}}', mask == 0o{mask})")
    previous = os.umask(int(mask, 8))
    try:
        client = host.client(name)
    finally:
        os.umask(previous)
    assert client.communicate("", timeout=60) == (f"{mask} True\n", "")


def test_a_server_that_ends_leaves_no_file(host: Host) -> None:
    server = host.serve(idle_s=0.5)
    assert server.wait(timeout=60) == 0
    assert list(host.folder().iterdir()) == []


def test_the_files_of_killed_servers_are_removed_and_those_of_living_ones_stay(host: Host) -> None:
    killed = host.serve()
    killed.kill()
    killed.wait()
    left = {path.name for path in host.folder().iterdir()}
    assert {Path(name).suffix for name in left} == {".sock", ".lock"}
    for name in left:
        (host.folder() / f"other{Path(name).suffix}").write_bytes(b"")
    for path in host.folder().iterdir():
        os.utime(path, (0, 0))
    living = host.serve()  # at the address of the first
    assert {path.name for path in host.folder().iterdir()} == left
    for path in host.folder().iterdir():
        os.utime(path, (0, 0))
    another = subprocess.Popen(
        [sys.executable, "-c", SERVER, "60"], env=host.environment(PYTHONOPTIMIZE="1"), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    host.processes.append(another)
    wait_for(lambda: len(host.sockets()) == 2)
    assert left <= {path.name for path in host.folder().iterdir()}
    assert host.run(host.module("after", "print('served')")) == (0, "served\n", "")
    assert living.poll() is None


@pytest.mark.parametrize("source", ["import os; os._exit(0)", "import os\ntry: raise SystemExit\nfinally: os._exit(0)"])
def test_a_module_that_ends_its_process_is_not_taken_for_complete(host: Host, source: str) -> None:
    host.serve()
    code, _, errors = host.run(host.module("ending", source))
    assert code == 1
    assert errors.startswith("ending: os._exit(0) ended its process before the stage was complete; remove the call")


ENDING = """
import os
import time
from lowerdeck.execution import preload
from lowerdeck.execution.stage_entry import run_stage

LIBRARIES = preload.Libraries(modules=("colorsys",), read_at_import=())
address = preload.socket_address(LIBRARIES)
if address is not None:  # in the stage's own process
    preload.start(LIBRARIES)
    while not preload.answers(address):
        time.sleep(0.05)
run_stage(__name__, lambda: ACTION, preloaded_within_s=20, libraries=LIBRARIES)
"""


def run_ending(host: Host, action: str, stage: str = "ending", **variables: str) -> subprocess.CompletedProcess[str]:
    stages = host.work / "stages"
    stages.mkdir()
    (stages / "__init__.py").touch()
    (stages / f"{stage}.py").write_text(ENDING.replace("ACTION", action))
    command, environment = [sys.executable, "-m", f"stages.{stage}"], host.environment(**variables)
    return subprocess.run(
        command, cwd=host.work, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGABRT, "SIGABRT, a library in native code"), (signal.SIGKILL, "SIGKILL, by someone")]
)
def test_a_stage_whose_process_is_ended_says_so(number: signal.Signals, said: str, host: Host) -> None:
    """LiteRT and Vela's native parts abort at what they do not handle."""
    done = run_ending(host, f"os.kill(os.getpid(), {int(number)})")
    assert done.returncode == 1
    assert f"ending: its process was ended by {said}" in done.stderr


@pytest.mark.parametrize(
    ("stage", "number", "starts"),
    [
        ("convert", signal.SIGSEGV, ["1", "None"]),
        ("convert", signal.SIGKILL, ["1"]),
        ("ending", signal.SIGSEGV, ["None"]),
    ],
)
def test_convert_starts_again_after_a_crash_and_knows_that_nobody_starts_it_a_third_time(
    stage: str, number: signal.Signals, starts: list[str], host: Host
) -> None:
    done = run_ending(
        host, f"(print(os.environ.get({RERUN!r}), flush=True), os.kill(os.getpid(), {int(number)}))", stage
    )
    assert (done.returncode, done.stdout.split()) == (1, starts)
    assert f"{stage}: its process was ended by {number.name}, " in done.stderr
    again = "convert: its process was ended by SIGSEGV; again, with every partition tried in a process of its own"
    assert (again in done.stderr) is (len(starts) == 2)


@pytest.mark.parametrize("preload", ["0", "1"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys\nsys.exit(0)\n", "sys.exit(0) at factory.py:2"),
        ("raise SystemExit", "sys.exit() at factory.py:1"),
        ("\n\nimport argparse\nargparse.ArgumentParser().parse_args(['-h'])", "sys.exit(0) at factory.py:4"),
        ("raise SystemExit('no weights')", "sys.exit('no weights') at factory.py:1"),
    ],
)
def test_code_that_exits_is_no_completed_stage(source: str, said: str, preload: str, host: Host) -> None:
    """Scripts of other projects, which call sys.exit(main()) wherever they are imported."""
    (host.work / "factory.py").write_text(source)
    done = run_ending(host, "__import__('factory')", LOWERDECK_PRELOAD=preload)
    assert done.returncode == 1
    assert f"ending: {said} ended the process before the stage was complete; put it under `if __name__" in done.stderr


WAITING = "print('waits', flush=True)\n__import__('time').sleep(60)"
RUNNING = "from lowerdeck.execution.stage_entry import run_stage\nrun_stage(__name__, lambda: __import__('waiting'))"


@pytest.mark.parametrize(("source", "status"), [(WAITING, -signal.SIGINT), (RUNNING, 130)])
def test_ctrl_c_ends_a_stage_without_a_traceback(source: str, status: int, host: Host) -> None:
    """Also while it imports what it needs to handle that, which takes half a second."""
    host.module("waiting", WAITING)
    (host.work / "stages").mkdir()
    shutil.copy(REPOSITORY / "stages" / "__init__.py", host.work / "stages")
    (host.work / "stages" / "export.py").write_text(source)
    assert interrupted([sys.executable, "-m", "stages.export"], host) == (status, "")


def test_a_stage_that_ignores_ctrl_c_goes_on_doing_so(host: Host) -> None:
    """Started in the background of a shell without job control."""
    (host.work / "stages").mkdir()
    shutil.copy(REPOSITORY / "stages" / "__init__.py", host.work / "stages")
    run = "run_stage(__name__, lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))"
    source = f"import signal\nfrom lowerdeck.execution.stage_entry import run_stage\n{run}"
    (host.work / "stages" / "export.py").write_text(source)
    command = f"trap '' INT; exec {sys.executable} -m stages.export"
    done = subprocess.run(
        ["sh", "-c", command], cwd=host.work, env=host.environment(), stdout=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_ctrl_c_while_dvc_is_imported_prints_no_traceback(host: Host) -> None:
    (host.work / "dvc").mkdir()
    (host.work / "dvc" / "__init__.py").touch()
    (host.work / "dvc" / "cli.py").write_text(WAITING)
    path = os.pathsep.join((str(host.work), SOURCES))
    command = [sys.executable, "-m", "lowerdeck.execution.quiet_dvc", "repro"]
    assert interrupted(command, host, PYTHONPATH=path) == (130, "")


def interrupted(command: list[str], host: Host, **variables: str) -> tuple[int, str]:
    """Exit status and errors of `command`, which gets SIGINT when it has written something."""
    process = subprocess.Popen(
        command, cwd=host.work, env=host.environment(**variables), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    host.processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors
