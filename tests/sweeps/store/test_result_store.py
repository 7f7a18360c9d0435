"""The store of results: whole or not at all, believed only after a look, shared by processes."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.sweeps.store.entries import StoredFile, entry_content
from lowerdeck.sweeps.store.result_store import LEFTOVER_AGE_S, ResultStore
from tests.project import SOURCES

KEY, OTHER_KEY = hashlib.sha256(b"one").hexdigest(), hashlib.sha256(b"two").hexdigest()
FILES = {"build/convert/program.pte": b"program" * 1000, "build/convert/manifest.json": b"{}", "empty.txt": b""}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A folder with the files of a result."""
    folder = tmp_path / "result"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(params=["folder", "memory", "file_url"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new store in a folder, and in an object storage whose copies lie in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = {
        "folder": str(tmp_path / "store"),
        "memory": f"memory://{uuid4()}/store",
        "file_url": f"file://{tmp_path}/store",
    }
    return places[request.param]


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored_object(store: Path, content: bytes) -> Path:
    sha256 = hashlib.sha256(content).hexdigest()
    return store / "objects" / sha256[:2] / sha256[2:]


def damage(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that executes `code` with the project's sources."""
    environment = os.environ | {"PYTHONPATH": SOURCES}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_result_comes_back_as_it_was(location: str, result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(location)
    assert not store.contains(KEY)
    assert not store.get(KEY, tmp_path / "out")
    store.put(KEY, result, FILES)

    again = ResultStore.open(location)
    assert again.contains(KEY)
    assert not again.contains(OTHER_KEY)
    assert again.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES
    mode = (tmp_path / "out" / "empty.txt").stat().st_mode
    assert mode & stat.S_IWUSR, "a stage could not write its output again"


def test_another_machine_gets_what_object_storage_holds(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"memory://{uuid4()}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    ResultStore.open(location).put(KEY, result, FILES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    assert ResultStore.open(location).get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES


def test_what_is_done_to_a_result_leaves_the_store_as_it_is(result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, FILES)
    for name in FILES:
        (result / name).write_bytes(b"changed by the stage that made it")
    assert store.get(KEY, tmp_path / "out")
    for name in FILES:
        with (tmp_path / "out" / name).open("r+b") as file:
            file.write(b"changed in place")
    assert store.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES


def test_a_linked_result_needs_no_room_of_its_own_and_is_as_safe(result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, FILES, linked=True)
    program = result / "build/convert/program.pte"
    assert program.samefile(stored_object(tmp_path / "store", FILES["build/convert/program.pte"]))
    assert program.stat().st_mode & stat.S_IWUSR, "a copy of it could not be replaced in MLflow's folder"
    assert store.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES
    assert not (tmp_path / "out/build/convert/program.pte").samefile(program)

    program.write_bytes(FILES["build/convert/program.pte"].swapcase())
    assert not store.get(KEY, tmp_path / "again"), "what was written into a linked file passes for the result"
    program.unlink()
    program.write_bytes(FILES["build/convert/program.pte"])
    store.put(KEY, result, FILES, linked=True)
    assert store.get(KEY, tmp_path / "again")
    assert files_below(tmp_path / "again") == FILES


def test_a_link_of_a_result_is_kept_as_what_it_points_at(result: Path, tmp_path: Path) -> None:
    (result / "other").symlink_to("build/convert/program.pte")
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, ["other"], linked=True)
    assert store.get(KEY, tmp_path / "out")
    assert not (tmp_path / "out/other").is_symlink()
    assert files_below(tmp_path / "out") == {"other": FILES["build/convert/program.pte"]}


def test_the_same_content_is_kept_once(result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, FILES)
    store.put(OTHER_KEY, result, FILES)
    assert len(files_below(tmp_path / "store" / "objects")) == len(FILES)
    assert len(files_below(tmp_path / "store" / "entries")) == 2


@pytest.mark.parametrize("damaged", [b"PROGRAM" * 1000, b"", None], ids=["other bytes", "empty", "missing"])
def test_a_damaged_object_counts_as_missing_and_put_replaces_it(
    damaged: bytes | None, result: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    store = ResultStore.open(str(tmp_path / "store"), said.append)
    store.put(KEY, result, FILES)
    path = stored_object(tmp_path / "store", FILES["build/convert/program.pte"])
    path.unlink() if damaged is None else damage(path, damaged)

    assert not store.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == {}, "the sound files of a damaged result were put out"
    assert f"build/convert/program.pte of {KEY[:12]} is missing or damaged" in said[0]
    assert KEY[:12] in said[0]

    store.put(KEY, result, FILES)
    assert store.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES


def test_a_damaged_object_in_object_storage_counts_as_missing_and_put_replaces_it(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    place, content = str(uuid4()), FILES["build/convert/program.pte"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    ResultStore.open(f"memory://{place}").put(KEY, result, FILES)
    damaged = stored_object(Path(f"/{place}"), content)
    fsspec.filesystem("memory").pipe_file(str(damaged), content[::-1])

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    said: list[str] = []
    store = ResultStore.open(f"memory://{place}", said.append)
    assert not store.get(KEY, tmp_path / "out")
    assert said
    store.put(KEY, result, FILES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    assert ResultStore.open(f"memory://{place}").get(KEY, tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"files": {}',
        b'{"files": {"a": ["00", 1]}, "sha256": "00"}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_entry_counts_as_missing(content: bytes, result: Path, tmp_path: Path) -> None:
    said: list[str] = []
    store = ResultStore.open(str(tmp_path / "store"), said.append)
    store.put(KEY, result, FILES)
    damage(tmp_path / "store" / "entries" / KEY[:2] / KEY[2:], content)
    assert not store.contains(KEY)
    assert not store.get(KEY, tmp_path / "out")
    assert "damaged entry" in said[0]


@pytest.mark.parametrize("path", ["../outside", "/outside", "a/../../outside"])
def test_an_entry_cannot_write_outside_the_folder(path: str, result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, FILES)
    file = StoredFile(path, hashlib.sha256(b"").hexdigest(), 0)
    damage(tmp_path / "store" / "entries" / KEY[:2] / KEY[2:], entry_content([file]))
    assert not store.get(KEY, tmp_path / "out")
    assert not (tmp_path / "outside").exists()


def test_a_result_that_lacks_a_file_is_not_kept(result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    with pytest.raises(LowerdeckError, match="nowhere is not a file"):
        store.put(KEY, result, [*FILES, "nowhere"])
    assert not store.contains(KEY)


PUT = """
import sys
from pathlib import Path
from lowerdeck.sweeps.store.result_store import ResultStore
store, folder = ResultStore.open(sys.argv[1]), Path(sys.argv[2])
names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
print("putting", flush=True)
while True:
    store.put(sys.argv[3], folder, names)
"""


def test_a_process_killed_in_put_leaves_a_whole_result_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    contents = {f"{number}.bin": bytes([number]) * 2_000_000 for number in range(8)}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for number in range(6):
        location = tmp_path / f"store_{number}"
        process = run_python(PUT, str(location), str(folder), KEY)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.012 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store, out = ResultStore.open(str(location)), tmp_path / f"out_{number}"
        assert store.get(KEY, out) == store.contains(KEY)
        assert not store.contains(KEY) or files_below(out) == contents
        store.put(KEY, folder, contents)
        assert store.get(KEY, out)


def test_leftovers_of_killed_processes_are_removed_when_they_are_old(result: Path, tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    store.put(KEY, result, FILES)
    old, new = tmp_path / "store" / "partial" / "old", tmp_path / "store" / "partial" / "new"
    for leftover in (old, new):
        leftover.write_bytes(b"half")
    long_ago = time.time() - LEFTOVER_AGE_S - 60
    os.utime(old, (long_ago, long_ago))
    ResultStore.open(str(tmp_path / "store")).put(KEY, result, FILES)
    assert not old.exists()
    assert new.exists()


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """Writing past 2,000 bytes of a file fails, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_put_that_finds_no_room_leaves_nothing(result: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    request.getfixturevalue("file_size_limit")
    with pytest.raises(LowerdeckError, match="cannot be kept: File too large"):
        store.put(KEY, result, FILES)
    assert not store.contains(KEY)
    assert files_below(tmp_path / "store" / "partial") == {}


def test_a_get_that_finds_no_room_leaves_what_was_there(
    result: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, out = ResultStore.open(str(tmp_path / "store")), tmp_path / "out"
    store.put(KEY, result, FILES)
    out.mkdir()
    (out / "empty.txt").write_bytes(b"before")
    request.getfixturevalue("file_size_limit")
    with pytest.raises(LowerdeckError, match=r"cannot be put into .*: File too large"):
        store.get(KEY, out)
    assert files_below(out) == {"empty.txt": b"before"}


@contextmanager
def somebody() -> Iterator[None]:
    """Nothing is read-only to root: be nobody for a while where the tests run as root."""
    import filelock  # noqa: F401  what is imported late may be readable by root alone

    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_store_that_may_only_be_read_is_read(result: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        location, out = Path(name) / "store", Path(name) / "out"
        ResultStore.open(str(location)).put(KEY, result, FILES)
        for path in (location, *location.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        Path(name).chmod(0o755)
        out.mkdir()
        out.chmod(0o777)
        store = ResultStore.open(str(location))
        with somebody():
            assert store.contains(KEY)
            assert store.get(KEY, out)
            with pytest.raises(LowerdeckError, match="the result cannot be kept: Permission denied"):
                store.put(OTHER_KEY, out, FILES)
            with pytest.raises(LowerdeckError, match="no lock can be held: Permission denied"), store.lock(OTHER_KEY):
                pass
        assert files_below(out) == FILES
        for path in (location, *location.rglob("*")):
            path.chmod(0o755)


MAKE = """
import os, sys, time
from pathlib import Path
from lowerdeck.sweeps.store.result_store import ResultStore
location, folder, key = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
store = ResultStore.open(location)
folder.mkdir()
if not store.get(key, folder):
    with store.lock(key):
        if not store.get(key, folder):
            time.sleep(1)
            (folder / "made").write_text(str(os.getpid()))
            store.put(key, folder, ["made"])
            print("made")
"""


def test_two_processes_make_one_result_once(tmp_path: Path) -> None:
    processes = [run_python(MAKE, str(tmp_path / "store"), str(tmp_path / str(n)), KEY) for n in range(2)]
    said = [process.communicate(timeout=60) for process in processes]
    assert sorted(out for out, _ in said) == ["", "made\n"], said
    waited = next(errors for out, errors in said if not out)
    assert f"waiting for another process, which makes {KEY[:12]}" in waited
    assert (tmp_path / "0" / "made").read_text() == (tmp_path / "1" / "made").read_text()


HOLD = """
import sys, time
from lowerdeck.sweeps.store.result_store import ResultStore
with ResultStore.open(sys.argv[1]).lock(sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = run_python(HOLD, str(tmp_path / "store"), KEY)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    said: list[str] = []
    store = ResultStore.open(str(tmp_path / "store"), said.append)
    with store.lock(OTHER_KEY):
        assert not said, "another result is nobody's business"
    threading.Timer(0.3, process.kill).start()
    start_s = time.monotonic()
    with store.lock(KEY):
        waited_s = time.monotonic() - start_s
    process.communicate()
    assert waited_s >= 0.25
    assert "waiting for another process" in said[0]


def test_a_location_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"cannot be used as a store.*A path is allowed"):
        ResultStore.open("nowhere://bucket/store")
    with pytest.raises(LowerdeckError, match="needs a package that is not installed"):
        ResultStore.open("oci://bucket/store")


def test_what_object_storage_refuses_is_said(result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    closed_port = "http://127.0.0.1:9"
    store = ResultStore.open(f"{closed_port}/store")
    with pytest.raises(LowerdeckError, match=r"the store http://127\.0\.0\.1:9/store refused: ClientConnectorError"):
        store.get(KEY, tmp_path / "out")


def test_digests_describe_a_result_without_taking_it_out(location: str, result: Path) -> None:
    store = ResultStore.open(location)
    assert store.digests(KEY) is None
    store.put(KEY, result, FILES)
    assert store.digests(KEY) == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


def test_who_asks_learns_that_a_result_is_being_made(tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path / "store"))
    assert not store.is_locked(KEY)
    with store.lock(KEY):
        assert store.is_locked(KEY)
        assert not store.is_locked(OTHER_KEY)
    assert not store.is_locked(KEY)


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of an S3 server on this machine, where s3fs and moto are installed."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "FSSPEC_S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.client("s3").create_bucket(Bucket="builds")
    yield "s3://builds"
    server.stop()


def test_a_bucket_is_a_store_and_is_not_made(
    s3_bucket: str, result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    ResultStore.open(f"{s3_bucket}/lowerdeck").put(KEY, result, FILES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    again = ResultStore.open(f"{s3_bucket}/lowerdeck")
    assert again.contains(KEY)
    assert not again.contains(OTHER_KEY)
    assert again.get(KEY, tmp_path / "out")
    assert files_below(tmp_path / "out") == FILES

    for _ in range(2):
        with pytest.raises(LowerdeckError, match="bucket does not exist"):
            ResultStore.open("s3://biulds/lowerdeck").put(KEY, result, FILES)
