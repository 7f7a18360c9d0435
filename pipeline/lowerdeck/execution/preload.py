"""Preload servers, which import libraries once and run stages in forks: one for PyTorch and ExecuTorch, one for MLflow.

Importing ExecuTorch takes six to eight seconds, and five stages need it: more than half of a small build. The first
stage starts this server in the background; later ones run in forks of it, in which everything is imported. MLflow takes
two more seconds, for track alone: its server is started while convert runs. A server imports no code of the project, so
that a fork always runs the current sources. It ends by itself after two idle minutes. With LOWERDECK_PRELOAD=0, or if
anything goes wrong here, stages run without it.

Only the standard library is imported at the top, because every stage imports this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

IDLE_S = 120.0
_STARTED_WITHIN_S = 60.0
"""Age of a file without a server at which none is about to start there."""
SWITCH = "LOWERDECK_PRELOAD"
_COMPLETE = 87
"""Exit status of a fork whose module returned or raised SystemExit(0): one that os._exit is hardly called with."""
_INCOMPLETE = 1000
"""A server's answer for a fork that ended with status 0, as by os._exit(0), before its module did: no exit status."""
_ENDED_BY_ITSELF = (
    "os._exit(0) ended its process before the stage was complete; remove the call from the code that the stage runs, "
    "e.g. from a model, a data set or a metric. What was built before is unchanged"
)
_RUN_AGAIN = frozenset({"stages.convert"})
"""Stages that try native code, and try it in forks where nobody runs them again after a crash."""
_THEN, _LATER = "--then", "--later"
"""In the arguments of a server, between its modules: first, others and later ones."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Imports of one server, in their order."""

    first: tuple[str, ...] = ()
    """Modules after which a stage may run that asks for no others."""
    modules: tuple[str, ...]
    """Modules that all other stages wait for."""
    read_at_import: tuple[str, ...]
    """Prefixes of variables that take effect during the imports: a server accepts clients with the same values only."""
    later: tuple[str, ...] = ()
    """Modules that some stages need, imported while the first one runs that has waited for `modules`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set before the imports, unless the user has set them."""


_READ_AT_IMPORT = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NPY_")
LOWERING = Libraries(
    # What torch.export needs, in pieces: a stage that begins or ends meanwhile waits for the piece of that moment.
    first=("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch.export._trace"),
    modules=(
        *("torchao", "torch._inductor.fx_passes.post_grad", "executorch.exir.dialects._ops"),
        "executorch.exir",  # before the quantizers, which then import two seconds faster
        "torchao.quantization.pt2e.quantize_pt2e",
        "executorch.exir.passes.remove_unused_parameters_pass",
        "torch.ao.quantization.fx._decomposed",
        "executorch.backends.xnnpack.quantizer.xnnpack_quantizer",
        "executorch.backends.xnnpack.partition.xnnpack_partitioner",
        *("safetensors.torch", "pydantic", "yaml", "tqdm"),
    ),
    later=(
        *("executorch.backends.arm.ethosu", "executorch.backends.arm.quantizer"),
        *("ai_edge_litert.interpreter", "executorch.devtools.bundled_program", "executorch.extension.flat_tensor"),
        "scipy.stats",
    ),
    read_at_import=(*_READ_AT_IMPORT, "ATEN_", "ONEDNN_", "TORCH", "PYTORCH"),
)
TRACKING = Libraries(
    modules=(
        *("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store"),
        *("matplotlib.figure", "matplotlib.backends.backend_agg", "jinja2", "pydantic", "yaml"),
    ),
    read_at_import=(*_READ_AT_IMPORT, "MLFLOW_", "MPL", "SQLALCHEMY_"),
    # Importing MLflow must not start its telemetry. Less output, and timeouts of seconds: with MLflow's defaults, a
    # call to a server that stops responding takes four minutes.
    environment={
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    },
)


def start(libraries: Libraries, environment: Mapping[str, str] = os.environ) -> subprocess.Popen[bytes] | None:
    """Start the server of `libraries` for `environment` unless it is running; returns its process immediately."""
    address = socket_address(libraries, environment)
    if address is None or answers(address):
        return None
    log = address.with_suffix(".log")
    with contextlib.suppress(OSError), log.open("ab") as output:
        return subprocess.Popen(
            # -P keeps this folder's modules out of the import path.
            [sys.executable, "-P", __file__, str(address), *_arguments(libraries)],
            env={**libraries.environment, **environment, "PYTHONPATH": _path_of_libraries(environment)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=address.parent,
            start_new_session=True,
        )
    return None


def _arguments(libraries: Libraries) -> list[str]:
    return [*libraries.first, _THEN, *libraries.modules, _LATER, *libraries.later]


def run(module: str, patience_s: float, libraries: Libraries = LOWERING, *, after_first: bool = False) -> int | None:
    """Run `python -m module` with this process's arguments in the server.

    Args:
        module: Module to run as `__main__`, found from the current folder as `python -m` does.
        patience_s: How long to wait for a server that is still importing.
        libraries: Libraries that the server must have imported.
        after_first: Whether the first of these are enough.

    Returns:
        The exit code, negative after a signal; None if there is no server.
    """
    address = socket_address(libraries)
    if address is None:
        return None
    return run_at(
        address,
        module,
        patience_s,
        argv=sys.argv,
        folder=Path.cwd(),
        environment=os.environ,
        after_first=after_first,
    )


def run_at(
    address: Path,
    module: str,
    patience_s: float,
    *,
    argv: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int] = (0, 1, 2),
    after_first: bool = False,
) -> int | None:
    """Run `python -m module` in the server at `address`; convert once more, in its careful way, after a crash.

    Args:
        address: Socket of the server.
        module: Module to run as `__main__`, found in `folder`.
        patience_s: How long to wait for a server that is still importing.
        argv: `sys.argv` of the module.
        folder: Its current folder.
        environment: Its environment.
        streams: File descriptors that become its standard input, output and error.
        after_first: Whether the server needs only its first modules for it.

    Returns:
        The exit code, negative after a signal; None if no server accepted the request.
    """
    from lowerdeck.runtime.child_processes import CRASHES, RERUN, exit_name

    request = {
        "module": module,
        "argv": list(argv),
        "cwd": str(folder),
        "env": dict(environment),
        "umask": _umask(),
        "after_first": after_first,
    }
    attempt = partial(_request, address, patience_s, streams)
    if module not in _RUN_AGAIN:
        return attempt(request)
    code = attempt(request | {"env": {**environment, RERUN: "1"}})
    if code is None or -code not in CRASHES:
        return code
    again = "again, with every partition tried in a process of its own"
    _say(streams, f"{module.removeprefix('stages.')}: its process was ended by {exit_name(code)}; {again}")
    return attempt(request)


def _request(
    address: Path, patience_s: float, streams: tuple[int, int, int], request: Mapping[str, object]
) -> int | None:
    """Send a request; the exit code of its stage, or None if no server accepted it."""
    try:
        connection = _connected(address)
    except OSError:
        return None
    with connection:
        try:
            connection.settimeout(patience_s)
            socket.send_fds(connection, [len(body := json.dumps(request).encode()).to_bytes(4, "big")], list(streams))
            connection.sendall(body)
            if connection.recv(1) != b"+":
                return None
            connection.settimeout(None)
            answer = connection.recv(4)
        except OSError:
            return None
        code = int.from_bytes(answer, "big", signed=True) if len(answer) == 4 else None
        if code is not None and code != _INCOMPLETE:
            return code
        ended = "the preload server was ended while it ran this stage" if code is None else _ENDED_BY_ITSELF
        _say(streams, f"{str(request['module']).removeprefix('stages.')}: {ended}")
        return 1


def _say(streams: tuple[int, int, int], line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(streams[2], f"{line}\n".encode())


def socket_address(libraries: Libraries = LOWERING, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Socket of the server for this interpreter, its packages and `environment`; None if preloading is off."""
    if environment.get(SWITCH) == "0" or not hasattr(socket, "send_fds") or not hasattr(os, "fork"):
        return None
    folder = private_folder()
    if folder is None:
        return None
    packages = Path(sysconfig.get_paths()["purelib"])
    given = {**libraries.environment, **environment, "PYTHONPATH": _path_of_libraries(environment)}
    variables = {key: value for key, value in given.items() if key.startswith(libraries.read_at_import)}
    installed = (sys.executable, sys.version, str(packages), packages.stat().st_mtime_ns)
    key = [*installed, sorted(variables.items()), *_arguments(libraries), inherited()]
    source = Path(__file__).read_bytes()  # another version of this module may use another protocol
    digest = hashlib.sha256(json.dumps(key).encode() + source).hexdigest()[:16]
    return folder / f"{digest}.sock"


def inherited() -> list[object]:
    """What a fork has from its server instead of its client, and cannot change: `taskset`, `nice`, `ulimit`, `newgrp`.

    A limit that was lowered cannot be raised again, nor can a priority; a cgroup bounds memory and ends with its job;
    groups decide whose the files are that a stage writes, and what it may read.
    """
    import resource

    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    found: list[object] = [(name, resource.getrlimit(getattr(resource, name))) for name in names]
    found += [os.getpriority(os.PRIO_PROCESS, 0), os.getgid(), os.getegid(), sorted(os.getgroups())]
    if sys.platform == "linux":
        found += [sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)]
        with contextlib.suppress(OSError):
            found.append(Path("/proc/self/cgroup").read_text(errors="replace"))
    return found


def _path_of_libraries(environment: Mapping[str, str]) -> str:
    """PYTHONPATH without the folders of sources, which hold no library: a server serves all copies of the code."""
    return os.pathsep.join(entry for entry in _python_path(environment) if not _holds_only_sources(Path(entry)))


def _python_path(environment: Mapping[str, str]) -> list[str]:
    return [os.path.abspath(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]  # noqa: PTH100  `resolve` would follow links, and Python does not


def _holds_only_sources(folder: Path) -> bool:
    has_sources = any((folder / package).is_dir() for package in ("lowerdeck", "stages"))
    return has_sources and next(folder.glob("*.dist-info"), None) is None  # else it is a folder of installed packages


def private_folder() -> Path | None:
    """A folder for sockets that only this user can write to; None if there is none."""
    folder = Path(tempfile.gettempdir()) / f"lowerdeck-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return None  # another user's server there could run code as this user
    return folder


def answers(address: Path) -> bool:
    """Whether a server listens at `address`."""
    with contextlib.suppress(OSError), _connected(address):
        return True
    return False


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel end this process with its parent: an orphaned stage would overwrite later work.

    Args:
        parent: Process id of the parent, if known: where it has ended already, so does this process.
    """
    if sys.platform == "linux":
        import ctypes

        parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def _umask() -> int:
    """The umask of this process. Linux shows it; elsewhere it can only be read by setting it."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    os.umask(mask := os.umask(0o077))
    return mask


def _connected(address: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(address))
    except OSError:
        connection.close()
        raise
    return connection


def serve(
    address: Path,
    modules: Sequence[str],
    idle_s: float = IDLE_S,
    *,
    first: Sequence[str] = (),
    later: Sequence[str] = (),
) -> None:
    """Listen at `address`, import `first` and `modules`, and run clients' requests until there is none for `idle_s`.

    A request is run when `first`, or all of these, have been imported, as it asks. The modules of `later` are imported
    while a request runs.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    lock = _locked(address)
    if lock is None:
        return  # another server was faster
    _remove_files_of_killed_servers(address)
    address.unlink(missing_ok=True)
    listener.bind(str(address))
    listener.listen()
    own_path = _python_path(os.environ)
    searched = [entry for entry in sys.path if entry not in own_path]
    try:
        _accept_until_idle(listener, lock, searched, idle_s, _Imports(first, modules, later))
    finally:
        _remove_files(address)


class _Imports:
    """The imports of a server, which makes them one by one and runs requests in between."""

    def __init__(self, first: Sequence[str], modules: Sequence[str], later: Sequence[str]) -> None:
        self._first, self._modules, self._later = list(first), list(modules), list(later)

    def are_due(self, has_requests: bool) -> bool:
        """Whether something is to be imported now, while requests are running or not."""
        return bool(self._first or self._modules or (has_requests and self._later))

    def complete(self, after_first: bool) -> None:
        """Import what a request waits for."""
        while self._first or (self._modules and not after_first):
            self.go_on()

    def go_on(self) -> None:
        """Import the next module; one that is not installed, or fails, is left to the stages that need it.

        Vela fails where Python drops docstrings (PYTHONOPTIMIZE=2).
        """
        import gc

        with contextlib.suppress(Exception):
            importlib.import_module((self._first or self._modules or self._later).pop(0))
        gc.freeze()  # forks then copy fewer pages and collect less
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a library resets what Python sets, and clients may disconnect


def _locked(address: Path) -> IO[str] | None:
    """The lock of the server at `address`; None if another process holds it."""
    import fcntl

    path = address.with_suffix(".lock")
    lock = path.open("a")
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A server that ends removes the file while it holds the lock: what is locked here may be no file any more.
        if os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            return lock
    lock.close()
    return None


def _remove_files(address: Path) -> None:
    """Remove what the server at `address` needs, the lock last: its holder may remove the others."""
    for suffix in (".sock", ".log", ".lock"):
        address.with_suffix(suffix).unlink(missing_ok=True)


def _remove_files_of_killed_servers(own: Path) -> None:
    """Remove the files of servers that could not remove them, but for those of the server at `own`."""
    for path in own.parent.iterdir():
        address = path.with_suffix(".sock")
        if address == own or path.suffix not in (".sock", ".log", ".lock"):
            continue
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STARTED_WITHIN_S and (lock := _locked(address)) is not None:
                _remove_files(address)
                lock.close()


def _accept_until_idle(
    listener: socket.socket, lock: IO[str], searched: Sequence[str], idle_s: float, imports: _Imports
) -> None:
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    wakeup, wakeup_writer = socket.socketpair()
    wakeup_writer.setblocking(False)
    signal.set_wakeup_fd(wakeup_writer.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector.register(wakeup, selectors.EVENT_READ)
    running: dict[int, socket.socket] = {}
    while True:
        is_importing = imports.are_due(bool(running))
        events = selector.select(0 if is_importing else None if running else idle_s)
        if not events and is_importing:
            imports.go_on()
        elif not events and not running:
            return
        for key, _ in events:
            if key.fileobj is listener:
                connection, _ = listener.accept()
                # A fork that held the lock, or another client's connection, would outlive this server in them.
                pid = _fork_stage(
                    connection, searched, imports, (listener, lock, wakeup, wakeup_writer, *running.values())
                )
                if pid is not None:
                    running[pid] = connection
                    selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj is wakeup:
                wakeup.recv(4096)
                for pid, code in _ended(running):
                    connection = running.pop(pid)
                    with contextlib.suppress(KeyError):  # already unregistered if the client disconnected first
                        selector.unregister(connection)
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(code.to_bytes(4, "big", signed=True))
            else:  # a client sends nothing more, so it has disconnected; its stage may have ended just before
                for pid in [pid for pid, connection in running.items() if connection is key.fileobj]:
                    selector.unregister(key.fileobj)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)


def _ended(running: dict[int, socket.socket]) -> list[tuple[int, int]]:
    ended = []
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            ended.append((pid, {_COMPLETE: 0, 0: _INCOMPLETE}.get(code, code)))
    return ended


def _fork_stage(
    connection: socket.socket,
    searched: Sequence[str],
    imports: _Imports,
    servers_own: Iterable[socket.socket | IO[str]],
) -> int | None:
    """Read a request and run it in a fork; returns the fork's process id, None if the client has disconnected.

    Args:
        connection: The client's.
        searched: The server's import path without what PYTHONPATH added.
        imports: Those of the server, of which the request may wait for some.
        servers_own: What the fork must not hold open.
    """
    connection.settimeout(5.0)
    fds: list[int] = []
    try:
        header, fds, _, _ = socket.recv_fds(connection, 4, 3)
        remaining, body = int.from_bytes(header, "big"), b""
        while remaining > len(body):
            chunk = connection.recv(remaining - len(body))
            if not chunk:
                raise ConnectionError
            body += chunk
        request = json.loads(body)
        imports.complete(bool(request.get("after_first")))
        connection.sendall(b"+")
    except (OSError, ValueError, AttributeError):
        connection.close()
        for fd in fds:
            os.close(fd)
        return None
    connection.settimeout(None)
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        for opened in (connection, *servers_own):
            opened.close()
        _run_module(request, fds, searched)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    for fd in fds:
        os.close(fd)
    return pid


def _run_module(request: dict[str, object], fds: list[int], searched: Sequence[str]) -> NoReturn:
    """Behave like `python -m MODULE` in this fork, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        os.chdir(str(request["cwd"]))
        os.umask(int(str(request["umask"])))
        os.environ.clear()
        os.environ.update({str(key): str(value) for key, value in dict(request["env"]).items()})  # type: ignore[call-overload]
        os.environ[SWITCH] = "0"  # the stage runs here
        sys.argv = [str(argument) for argument in request["argv"]]  # type: ignore[attr-defined]
        sys.path[:] = dict.fromkeys((str(request["cwd"]), *_python_path(os.environ), *searched))
        importlib.invalidate_caches()
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)  # as the interpreter does
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or _COMPLETE)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # a fork can no longer: its output is another file than Python opened
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    then, end = sys.argv.index(_THEN), sys.argv.index(_LATER)
    serve(Path(sys.argv[1]), sys.argv[then + 1 : end], first=sys.argv[2:then], later=sys.argv[end + 1 :])
