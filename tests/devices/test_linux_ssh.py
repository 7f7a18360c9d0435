"""A board by ssh: OpenSSH's server on this machine, and what becomes of connections that fail."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import executorch
import psutil
import pytest

from lowerdeck.contracts.devices import DeviceError, Provenance
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.devices import linux_ssh, native
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.formats.etdump import read_etdump
from tests.devices.programs import firsts, floats, needs_ssh, self_test_job


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[linux_ssh.Options]:
    """A server that lets this user in with a key of its own."""
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'authorized'}\n"
        f"PidFile {folder / 'pid'}\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server's own, which its service would make
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield linux_ssh.Options(
            host="127.0.0.1",
            port=port,
            user=getpass.getuser(),
            identity_file=str(folder / "user"),
            python=sys.executable,
            ssh_options=["StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={folder / 'known'}"],
        )
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
@needs_ssh
def test_a_hundred_samples_over_one_connection(board: linux_ssh.Options, tmp_path: Path) -> None:
    samples = [[floats(number)] for number in range(100)]
    one, times = self_test_job(tmp_path, samples=samples[:1]), []
    for job in (one, self_test_job(tmp_path, samples=samples, repetitions=6, profile=True)):
        start = time.monotonic()
        executed = linux_ssh.execute(board, job)
        times.append(time.monotonic() - start)
    assert firsts(executed, 1) == [[number * number + number] for number in range(100)]
    assert len(executed.latencies_ms) == 6
    assert executed.etdump
    assert re.match(r"executed by executorch 1\.\S+, \w+", executed.notes[0])
    assert times[1] - times[0] < 100 * 0.05, "at most 50 ms a sample beyond execution"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled runner, for this machine."""
    if shutil.which("g++") is None:
        pytest.skip("apt-get install g++")
    (sdk,) = executorch.__path__
    return native.build(["g++"], Path(sdk), tmp_path_factory.mktemp("sdk") / "runner")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The board's folder of runners, without what these tests put there."""
    folder = Path.home() / ".cache" / "lowerdeck"
    before = set(folder.iterdir()) if folder.is_dir() else set()
    yield folder
    for path in (set(folder.iterdir()) if folder.is_dir() else set()) - before:
        shutil.rmtree(path)


def with_options(options: linux_ssh.Options, **changes: object) -> linux_ssh.Options:
    return linux_ssh.Options(**{**vars(options), **changes})


@needs_ssh
def test_a_compiled_runner_is_sent_once(board: linux_ssh.Options, runner: Path, home: Path, tmp_path: Path) -> None:
    compiled = with_options(board, runner=str(runner), python="no-such-python")
    samples, times = [[floats(number)] for number in range(100)], []
    for job in (
        self_test_job(tmp_path),
        self_test_job(tmp_path, samples=samples[:1]),
        self_test_job(tmp_path, samples=samples, warm_up=2, repetitions=6, profile=True),
    ):
        start = time.monotonic()
        executed = linux_ssh.execute(compiled, job)
        times.append(time.monotonic() - start)
    assert firsts(executed, 1) == [[number * number + number] for number in range(100)]
    assert len(executed.latencies_ms) == 6
    assert executed.etdump is not None
    assert [(entry.instruction, len(entry.ticks)) for entry in read_etdump(executed.etdump)] == [(0, 6), (1, 6)]
    assert executed.program_sha256 == file_digest(self_test_job(tmp_path).program)
    assert executed.metrics["peak_process_memory_bytes"] >= 0
    assert times[2] - times[1] < 100 * 0.05, "at most 50 ms a sample beyond execution"
    name, _ = native.archive(runner)
    assert {path.name for path in (home / name).iterdir()} == {path.name for path in runner.iterdir()}


@needs_ssh
def test_a_board_that_is_full_says_so(board: linux_ssh.Options, runner: Path, tmp_path: Path) -> None:
    full = with_options(board, runner=str(runner), ssh=str(tmp_path / "ssh"))
    (tmp_path / "ssh").write_text(
        '#!/bin/sh\ncase "$*" in *tar*) cat > /dev/null; echo No space left on device >&2; exit 2;; esac; exit 97'
    )
    (tmp_path / "ssh").chmod(0o755)
    with pytest.raises(DeviceError, match=r"(?s)ended with status 2; .*No space left on device"):
        linux_ssh.execute(full, self_test_job(tmp_path))


def local_shell(folder: Path, before: str) -> str:
    """A client whose board is a shell of this machine, which does something `before` each command."""
    client = folder / "ssh"
    passed_over = 'while [ "$1" != -- ]; do shift; done; shift 2'
    client.write_text(f'#!/bin/sh\n{passed_over}\nHOME="{folder}/my home"\n{before}\nexec sh -c "$*"\n')
    client.chmod(0o755)
    return str(client)


def test_a_home_with_a_space_gets_the_runner(tmp_path: Path) -> None:
    """The shell took it for two words."""
    runner = tmp_path / "made"
    runner.mkdir()
    (runner / "runner").write_text("#!/bin/sh\necho it runs >&2; exit 5\n")
    options = linux_ssh.Options(host="pi", ssh=local_shell(tmp_path, ""), runner=str(runner))
    with pytest.raises(DeviceError, match=r"(?s)ended with status 5; .*it runs"):
        linux_ssh.execute(options, self_test_job(tmp_path))
    assert len(list((tmp_path / "my home/.cache/lowerdeck").iterdir())) == 1


def test_python_in_the_home_of_the_board(tmp_path: Path) -> None:
    """The path was quoted as a whole, so that the board had no folder named ~."""
    binary = tmp_path / "my home/venv/bin"
    binary.mkdir(parents=True)
    (binary / "python").write_text("#!/bin/sh\necho it runs >&2; exit 5\n")
    (binary / "python").chmod(0o755)
    options = linux_ssh.Options(host="pi", ssh=local_shell(tmp_path, ""), python="~/venv/bin/python")
    with pytest.raises(DeviceError, match=r"(?s)ended with status 5; .*it runs"):
        linux_ssh.execute(options, self_test_job(tmp_path))


def test_a_greeting_is_quoted_with_a_way_out(tmp_path: Path) -> None:
    options = linux_ssh.Options(host="pi", ssh=local_shell(tmp_path, "echo Welcome"), python=sys.executable)
    with pytest.raises(DeviceError, match=r"(?s)it begins with b'Welcome\\n\{.*its ~/.bashrc, print it at a terminal"):
        linux_ssh.execute(options, self_test_job(tmp_path))


@needs_ssh
@pytest.mark.slow
def test_a_cross_compiled_runner_for_aarch64(board: linux_ssh.Options, home: Path, tmp_path: Path) -> None:
    wheel, compiler, emulator = os.environ.get("AARCH64_WHEEL"), "aarch64-linux-gnu-g++-12", "qemu-aarch64-static"
    if wheel is None or not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(
            "apt-get install g++-12-aarch64-linux-gnu qemu-user-static; pip download --no-deps --only-binary=:all: "
            "--platform manylinux_2_28_aarch64 executorch==1.5.1; AARCH64_WHEEL=the file that this makes"
        )
    made = native.build([compiler], Path(wheel), tmp_path / "runner")
    emulated = with_options(board, runner=str(made), launcher=[emulator, "-L", "/usr/aarch64-linux-gnu"], emulated=True)
    described = linux_ssh.describe(emulated)
    assert (described.provenance, described.gives) == (Provenance.EMULATED, ("memory", "state")), "its time is not real"
    executed = linux_ssh.execute(emulated, self_test_job(tmp_path, profile=True))
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert executed.etdump is not None
    assert len(read_etdump(executed.etdump)) == 2
    assert "qemu-aarch64-static" in executed.notes[-1]


def test_a_runner_that_is_missing_and_an_sdk_without_headers(tmp_path: Path) -> None:
    options = linux_ssh.Options(host="pi", runner=str(tmp_path))
    assert [part.how for part in linux_ssh.describe(options).missing] == ["lowerdeck devices runner --help"]
    with pytest.raises(LowerdeckError, match=r"has no C\+\+ SDK of ExecuTorch 1.5 .*--platform manylinux_2_28_aarch64"):
        native.build(["g++"], tmp_path, tmp_path / "out")
    (sdk,) = executorch.__path__
    with pytest.raises(LowerdeckError, match="no-such-compiler cannot be started"):
        native.build(["no-such-compiler"], Path(sdk), tmp_path / "out")
    with pytest.raises(LowerdeckError, match="false failed with status 1"):
        native.build(["false"], Path(sdk), tmp_path / "out")


def test_a_folder_with_other_files_stays(tmp_path: Path) -> None:
    """`--output .` deleted the project."""
    (sdk,) = executorch.__path__
    compiler, output = tmp_path / "compiler", tmp_path / "runner"
    compiler.write_text('#!/bin/sh\nfor part; do [ "$last" = -o ] && echo "$VERSION" > "$part"; last=$part; done\n:\n')
    compiler.chmod(0o755)
    for version in ("1", "2"):
        native.build(["env", f"VERSION={version}", str(compiler)], Path(sdk), output)
        assert (output / "runner").read_text() == f"{version}\n"
    note = output / "notes" / "mine.txt"
    note.parent.mkdir()
    note.write_text("kept")
    with pytest.raises(
        LowerdeckError, match=r"--output .*runner has other files .* such as 'notes'; name a new folder"
    ):
        native.build([str(compiler)], Path(sdk), output)
    with pytest.raises(LowerdeckError, match=r"--output .*mine.txt is no folder; name a new folder"):
        native.build([str(compiler)], Path(sdk), note)
    assert note.read_text() == "kept"


@needs_ssh
@pytest.mark.parametrize("victim", ["runner", "server"])
def test_a_connection_that_dies_midway(board: linux_ssh.Options, tmp_path: Path, victim: str) -> None:
    def is_victim(process: psutil.Process) -> bool:
        # The runner on the "board", which no other test starts this way, and sshd's process for the connection.
        if process.name().startswith("python") and "exec(compile(sys.stdin" in " ".join(process.cmdline()):
            if victim == "runner":
                process.kill()
                return True
            for parent in process.parents():
                if parent.name() == "sshd":
                    parent.kill()
                    process.kill()
                    return True
        return False

    def strike() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for process in psutil.process_iter():
                with suppress(psutil.Error):  # it ended meanwhile
                    if is_victim(process):
                        return
            time.sleep(0.01)

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(DeviceError, match=r"the board \S+@127.0.0.1 ended with"):
        linux_ssh.execute(board, self_test_job(tmp_path, repetitions=1_000_000))
    striker.join()


@needs_ssh
def test_a_board_that_is_absent_or_lacks_executorch(board: linux_ssh.Options, tmp_path: Path) -> None:
    absent = linux_ssh.Options(host="127.0.0.1", port=1)
    with pytest.raises(DeviceError, match=r"(?s)ended with status 255; .*Connection refused.*Try `ssh -T"):
        linux_ssh.execute(absent, self_test_job(tmp_path))
    bare = linux_ssh.Options(**{**vars(board), "python": "no-such-python"})
    with pytest.raises(DeviceError, match=r"(?s)ended with status 127.*pip install executorch"):
        linux_ssh.execute(bare, self_test_job(tmp_path))


@needs_ssh
def test_a_board_that_hangs_is_left(board: linux_ssh.Options, tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    hanging = linux_ssh.Options(**{**vars(board), "python": str(script)})
    with pytest.raises(DeviceError, match=r"did not finish within 3 s"):
        linux_ssh.execute(hanging, self_test_job(tmp_path, timeout_s=3.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "-oProxyCommand=touch /tmp/x"}, "host is '-oProxyCommand=touch /tmp/x'"),
        ({"host": "a b"}, "host is 'a b'"),
        ({"host": ""}, "it must be a name or an address"),
        ({"host": "pi", "user": "-l"}, "user is '-l'"),
        ({"host": "pi", "port": 0}, "port is 0; it must be 1 to 65535"),
        ({"host": "pi", "num_threads": 0}, "num_threads is 0"),
    ],
)
def test_options_that_ssh_would_misread(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        linux_ssh.Options(**options)  # type: ignore[arg-type]


def test_a_client_that_is_missing() -> None:
    missing = linux_ssh.describe(linux_ssh.Options(host="pi", ssh="no-such-ssh")).missing
    assert [part.how for part in missing] == ["apt-get install openssh-client"]
