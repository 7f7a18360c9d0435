"""lowerdeck.notebook.modules: modules of several workspaces, and edited ones, in one process."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.notebook.modules import absolute, in_workspace


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What one test imports is not what the next one has imported before."""
    yield
    for name in [name for name in sys.modules if name.startswith("notebook_")]:
        del sys.modules[name]


@pytest.mark.slow
def test_folders_that_parts_of_two_workspaces_add_are_not_mixed_up(tmp_path: Path) -> None:
    """The second one had the module of the first one, which has the same name."""
    text = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parents[1] / 'lib'))\n"
    for name in ("first", "second"):
        for file, content in (
            ("params.yaml", ""),
            ("notebook_parts/__init__.py", text),
            ("notebook_parts/late.py", "import notebook_shared\n"),
            ("lib/notebook_shared.py", f"place = {name!r}\n"),
        ):
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(content)
    for name in ("first", "second", "first", "second", "first"):
        with in_workspace(tmp_path / name):
            part = importlib.import_module("notebook_parts.late")
            assert part.notebook_shared.place == name


@pytest.mark.parametrize("place", ["relative", "beside"])
def test_folders_of_any_kind_that_parts_of_two_workspaces_add_are_not_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Of folders that were relative, or outside of the workspace, the module of the first one was that of all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("own")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"notebook_own_{place}.py").write_text("place = 'own'\n")
    folder = "'research'" if place == "relative" else "str(Path(__file__).parents[2] / 'research')"
    text = f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {folder})\nimport notebook_{place} as found\n"
    for name in ("first", "second"):
        research = tmp_path / name / ("ws/research" if place == "relative" else "research")
        for file, content in (
            (tmp_path / name / "ws" / "params.yaml", ""),
            (tmp_path / name / "ws" / "own" / f"notebook_own_{place}.py", "place = 'workspace'\n"),
            (tmp_path / name / "ws" / "notebook_places" / f"{place}.py", text),
            (research / f"notebook_{place}.py", f"place = {name!r}\n"),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    for name in ("first", "second", "first"):
        with in_workspace(tmp_path / name / "ws"):
            part = importlib.import_module(f"notebook_places.{place}")
            assert part.found.place == name
    assert importlib.import_module(f"notebook_own_{place}").place == "own", "a relative entry of the user's"


def test_two_threads_have_the_parts_and_the_folder_of_their_own_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one had those of the first one, or failed, as its relative path counted from the first workspace."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        _write(tmp_path / name, {"params.yaml": "", "notebook_threads/part.py": f"place = {name!r}\n"})
    first_is_in, second_begins = threading.Event(), threading.Event()

    def first() -> tuple[str, Path]:
        with in_workspace("first"):
            first_is_in.set()
            assert second_begins.wait(30)
            time.sleep(0.2)  # the second one waits, or enters
            return importlib.import_module("notebook_threads.part").place, Path.cwd()

    def second() -> tuple[str, Path, Path]:
        assert first_is_in.wait(30)
        second_begins.set()
        saved = absolute("saved")
        with in_workspace("second"):
            return importlib.import_module("notebook_threads.part").place, Path.cwd(), saved

    with ThreadPoolExecutor(2) as threads:
        built = [threads.submit(build) for build in (first, second)]
    assert [each.result() for each in built] == [
        ("first", tmp_path / "first"),
        ("second", tmp_path / "second", tmp_path / "saved"),
    ]
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("edited", ["notebook_edited/part.py", "notebook_edited/core.py", "notebook_edited/table.txt"])
def test_parts_that_were_edited_are_imported_again(tmp_path: Path, edited: str) -> None:
    """The second build of a kernel had those of the first one, and all later processes took its configuration."""
    read = "from pathlib import Path\nvalue = Path(__file__).with_name('table.txt').read_text().strip()\n"
    for file, content in (
        ("params.yaml", ""),
        ("notebook_edited/part.py", "from notebook_edited.core import value\nshown = value + ' part'\n"),
        ("notebook_edited/core.py", f"{read}value += ' core'\n"),
        ("notebook_edited/table.txt", "table"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)

    def built() -> tuple[ModuleType, str]:
        with in_workspace(tmp_path):
            module = importlib.import_module("notebook_edited.part")
            return module, module.shown

    time.sleep(0.1)  # the clock of files is behind
    first, shown = built()
    assert shown == "table core part"
    assert built()[0] is first, "it is imported once, because it may register something"
    content = (tmp_path / edited).read_text()
    word = Path(edited).stem
    (tmp_path / edited).write_text(
        content.replace(f"{word}'", f"{word} edited'") if edited[-1] == "y" else "table edited"
    )
    changed = "table core part".replace(word, f"{word} edited")
    for _ in range(2):
        assert built()[1] == changed
        assert sys.modules["notebook_edited.part"] is first, "what the notebook itself has imported stays"


def test_an_edit_leaves_parts_alone_that_do_not_depend_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that registers something when it is imported allows that once."""
    monkeypatch.syspath_prepend(tmp_path)
    for file, content in (
        ("params.yaml", ""),
        ("notebook_library.py", ""),
        ("notebook_tools.py", "width = 1"),
        ("notebook_part.py", "import notebook_library\nfrom notebook_tools import width"),
    ):
        (tmp_path / file).write_text(content)
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path):
        first = importlib.import_module("notebook_part")
    (tmp_path / "notebook_tools.py").write_text("width = 1000")
    with in_workspace(tmp_path):
        part = importlib.import_module("notebook_part")
        assert (part.width, part.notebook_library) == (1000, first.notebook_library)


def _write(folder: Path, files: dict[str, str]) -> None:
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content)


def test_a_script_in_one_workspace_builds_another_one_by_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python puts the folder of a script on the path, and its parts were found before those of the workspace."""
    for name in ("script", "built"):
        _write(tmp_path / name, {"params.yaml": "", "notebook_found/part.py": f"place = {name!r}"})
    monkeypatch.syspath_prepend(tmp_path / "script")
    with in_workspace(tmp_path / "built"):
        assert importlib.import_module("notebook_found.part").place == "built"


def test_names_on_the_path_that_are_no_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install -e` of a package without __init__.py installs a hook for such a name, which was made a path."""
    hook = "__editable__.notebook-1.0.finder.__path_hook__"
    text = "import sys\nsys.path.append('__editable__.parts.__path_hook__')\n"
    _write(tmp_path, {"params.yaml": "", "notebook_hooks.py": text})
    monkeypatch.syspath_prepend(hook)
    for _ in range(2):
        with in_workspace(tmp_path):
            importlib.import_module("notebook_hooks")
            assert {hook, "__editable__.parts.__path_hook__"} <= set(sys.path)


def test_parts_that_compute_the_names_of_their_imports_depend_on_every_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept the values of the module that was edited; a library elsewhere that imports so is imported once."""
    by_name = "import importlib\nwidth = importlib.import_module('notebook_' + 'sizes').width"
    monkeypatch.syspath_prepend(tmp_path / "lib")
    _write(tmp_path / "lib", {"notebook_sizes.py": "width = 1", "notebook_library.py": "import importlib"})
    _write(tmp_path / "ws", {"params.yaml": "", "notebook_part.py": by_name})
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path / "ws"):
        importlib.import_module("notebook_part")
    library = importlib.import_module("notebook_library")
    (tmp_path / "lib" / "notebook_sizes.py").write_text("width = 1000")
    with in_workspace(tmp_path / "ws"):
        assert importlib.import_module("notebook_part").width == 1000
        assert importlib.import_module("notebook_library") is library


def test_parts_that_can_be_imported_once_say_so_after_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library says about a second registration does not say that the kernel is to be restarted."""
    register = (
        "def register():\n    if seen:\n        raise ValueError('resolver exists')\n    seen.append(1)\nseen = []"
    )
    monkeypatch.syspath_prepend(tmp_path / "lib")
    _write(tmp_path / "lib", {"notebook_registry.py": register})
    _write(tmp_path / "ws", {"params.yaml": "", "notebook_part.py": "import notebook_registry as r\nr.register()"})
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path / "ws"):
        importlib.import_module("notebook_part")
    with in_workspace(tmp_path / "ws"):
        importlib.import_module("notebook_part")
    (tmp_path / "ws" / "notebook_part.py").write_text("import notebook_registry as r\nr.register()  # edited")
    with (
        pytest.raises(LowerdeckError, match=r"notebook_part .*ValueError: resolver exists.*restart the kernel"),
        in_workspace(tmp_path / "ws"),
    ):
        importlib.import_module("notebook_part")
    with pytest.raises(ValueError, match="of the build"), in_workspace(tmp_path / "ws"):
        raise ValueError("of the build")


@pytest.mark.parametrize("links", ["dangling", "to each other"])
def test_links_in_a_package_are_no_edits(tmp_path: Path, links: str) -> None:
    """A link to nothing counted as a removed file; folders linked to each other ended builds that do not use them."""
    _write(tmp_path, {"params.yaml": "", "notebook_links/__init__.py": ""})
    if links == "dangling":
        (tmp_path / "notebook_links" / "latest").symlink_to(tmp_path / "nothing")
    else:
        folders = [tmp_path / "notebook_links" / f"folder{number}" for number in range(10)]
        for folder in folders:
            folder.mkdir()
        for folder in folders:
            for other in folders:
                (folder / f"to_{other.name}").symlink_to(other)
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path):
        first = importlib.import_module("notebook_links")
    for _ in range(2):
        sys.modules["notebook_links"] = first  # as a notebook that has imported it
        with in_workspace(tmp_path):
            assert importlib.import_module("notebook_links") is first


def _value(workspace: Path, module: str) -> str:
    """What the module says in a build."""
    with in_workspace(workspace):
        value = importlib.import_module(module).value
    assert isinstance(value, str)
    return value


def _relink(place: Path, target: str) -> None:
    place.unlink()
    place.symlink_to(target)


def _move(folder: Path) -> None:
    folder.rename(folder.with_name("before"))
    folder.with_name(f"{folder.name}_new").rename(folder)


REPLACED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a folder by another one": ("notebook_moved.part", lambda ws: _move(ws / "notebook_moved")),
    "a folder around it": ("notebook_around.inner.part", lambda ws: _move(ws / "notebook_around" / "inner")),
    "the file that a link is to": ("notebook_links.file", lambda ws: _relink(ws / "notebook_links/file.py", "new.py")),
    "the folder that a link is to": ("notebook_link.part", lambda ws: _relink(ws / "notebook_link", "linked_new")),
}


@pytest.mark.parametrize("when", ["between builds", "during the first build", "before the first build"])
@pytest.mark.parametrize("replaced", REPLACED)
def test_parts_that_were_replaced_are_imported_again(tmp_path: Path, replaced: str, when: str) -> None:
    """Time stamps of the files are those of before, and the old build was taken for the new one."""
    for version in ("", "_new"):
        for folder in ("notebook_moved", "notebook_around/inner", "linked"):
            _write(tmp_path, {f"{folder}{version}/part.py": f"value = 'is{version}'\n"})
    _write(tmp_path, {"params.yaml": "", "notebook_around/__init__.py": ""})
    _write(tmp_path / "notebook_links", {"old.py": "value = 'is'", "new.py": "value = 'is_new'"})
    (tmp_path / "notebook_links" / "file.py").symlink_to("old.py")
    (tmp_path / "notebook_link").symlink_to("linked")
    time.sleep(0.1)  # the clock of files is behind
    module, replace = REPLACED[replaced]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)  # as a notebook in the workspace
        if when == "before the first build":
            importlib.import_module(module)
            replace(tmp_path)
        elif when == "during the first build":
            with in_workspace(tmp_path):
                assert importlib.import_module(module).value == "is"
                time.sleep(0.1)
                replace(tmp_path)
        else:
            assert _value(tmp_path, module) == "is"
            replace(tmp_path)
    for _ in range(2):
        assert _value(tmp_path, module) == "is_new"


def test_an_edit_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    """Python took the bytecode of the first one for that of the second, in this process and in all later ones."""
    part = tmp_path / "notebook_fast" / "part.py"
    _write(tmp_path, {"params.yaml": "", "notebook_fast/part.py": "value = '0'\n"})
    for number in range(4):
        part.write_text(f"value = '{number}'\n")
        os.utime(part, (1e9, 1e9))
        assert _value(tmp_path, "notebook_fast.part") == str(number)
        time.sleep(0.1)  # the clock of files is behind


@pytest.mark.parametrize("file", ["part.py", "c.so"])
def test_what_is_written_again_as_it_was_is_no_edit(tmp_path: Path, file: str) -> None:
    """An editor that saves on its own, or a tool that formats, made libraries register twice what they may once."""
    file = file.replace(".so", EXTENSION_SUFFIXES[0])
    _write(tmp_path, {"params.yaml": "", "notebook_same/part.py": "value = 'is'", f"notebook_same/{file}": "value = 1"})
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path):
        first = importlib.import_module("notebook_same.part")
    for _ in range(2):
        _write(tmp_path, {f"notebook_same/{file}": "value = 1"})
        with in_workspace(tmp_path):
            assert importlib.import_module("notebook_same.part") is first


def test_an_extension_module_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python gives that of before to whoever imports it again."""
    file = tmp_path / "notebook_native" / f"c{EXTENSION_SUFFIXES[0]}"
    _write(tmp_path, {"params.yaml": "", "notebook_native/part.py": "", f"notebook_native/{file.name}": "first"})
    native = ModuleType("notebook_native.c")
    native.__file__ = str(file)
    time.sleep(0.1)  # the clock of files is behind
    with in_workspace(tmp_path):
        importlib.import_module("notebook_native.part")
        monkeypatch.setitem(sys.modules, native.__name__, native)
    with in_workspace(tmp_path):
        pass
    file.write_text("second")
    for _ in range(2):
        with pytest.raises(LowerdeckError, match=r"c\..* was changed .*restart the kernel"), in_workspace(tmp_path):
            pass
    file.write_text("first")
    with in_workspace(tmp_path):
        pass


def test_an_import_that_failed_halfway_leaves_nothing_behind(tmp_path: Path) -> None:
    """Once the package was repaired, modules which had been imported were no attributes of it."""
    _write(tmp_path, {"params.yaml": "", "notebook_half/part.py": "value = 'is'"})
    _write(tmp_path, {"notebook_half/__init__.py": "import notebook_half.part\nraise ValueError('half')"})
    with pytest.raises(ValueError, match="half"):
        _value(tmp_path, "notebook_half")
    _write(tmp_path, {"notebook_half/__init__.py": "import notebook_half.part\nvalue = notebook_half.part.value"})
    assert _value(tmp_path, "notebook_half") == "is"


def test_a_package_that_fails_halfway_after_an_edit_is_there_again_behind_the_build(tmp_path: Path) -> None:
    """It ended in a KeyError, and the kernel had lost the package."""
    _write(tmp_path, {"params.yaml": "", "notebook_typo/part.py": "", "notebook_typo/other.py": "value = 'is'"})
    _write(tmp_path, {"notebook_typo/__init__.py": "import notebook_typo.part\nfrom notebook_typo.other import value"})
    assert _value(tmp_path, "notebook_typo") == "is"
    before = sys.modules["notebook_typo.part"]
    _write(tmp_path, {"notebook_typo/other.py": "value = 'is"})
    with pytest.raises((LowerdeckError, SyntaxError), match=r"unterminated string|cannot be imported"):
        _value(tmp_path, "notebook_typo")
    assert sys.modules["notebook_typo.part"] is before
    _write(tmp_path, {"notebook_typo/other.py": "value = 'was'"})
    assert _value(tmp_path, "notebook_typo") == "was"


def test_a_package_that_was_removed_is_not_found(tmp_path: Path) -> None:
    """As by a new process."""
    _write(tmp_path, {"params.yaml": "", "notebook_gone/part.py": "value = 'is'"})
    time.sleep(0.1)  # the clock of files is behind
    assert _value(tmp_path, "notebook_gone.part") == "is"
    shutil.rmtree(tmp_path / "notebook_gone")
    with pytest.raises(ModuleNotFoundError):
        _value(tmp_path, "notebook_gone.part")
