"""Options of the configuration's groups: those in a workspace's conf/, and those that the package brings.

A workspace's option replaces the package's of the same name, as in any Hydra search path. In this repository both are
one folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowerdeck.contracts.errors import ConfigurationError


def package_files() -> Path:
    """Folder with the files of a workspace that the package brings: conf/, stages/, data/, dvc.yaml, params.yaml.

    A wheel has them in the package; an editable installation uses the repository, whose root is such a workspace.
    """
    package = Path(__file__).resolve().parents[1]
    packed = package / "workspace" / "files"
    return packed if packed.is_dir() else package.parents[1]


def conf_folders(conf_dir: Path) -> list[Path]:
    """`conf_dir` if it exists, and the package's conf/ unless it is the same folder, in the order of their precedence.

    Args:
        conf_dir: The folder conf of a workspace.
    """
    folders = [conf_dir.resolve(), (package_files() / "conf").resolve()]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def option_names(group: str, conf_dir: Path) -> list[str]:
    """Sorted names of the options of `group`."""
    return sorted({path.stem for folder in conf_folders(conf_dir) for path in _files(folder / group)})


def option_file(group: str, name: str, conf_dir: Path) -> Path:
    """The file of option `name` of `group`; the one in `conf_dir` if there is none."""
    places = [folder / group / f"{name}.yaml" for folder in conf_folders(conf_dir)]
    return next((place for place in places if place.is_file()), conf_dir / group / f"{name}.yaml")


@contextmanager
def hydra_search_path(conf_dir: Path) -> Iterator[None]:
    """Let Hydra compose from `conf_folders(conf_dir)` inside the block.

    Hydra's own `initialize_config_dir` takes one folder, which must contain the primary configuration.

    Raises:
        ConfigurationError: there is no folder to compose from.
    """
    from hydra import initialize_config_dir
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    folders = conf_folders(conf_dir)
    if not folders:
        raise ConfigurationError(f"there is no folder {conf_dir}; run this in a workspace (`lowerdeck init` makes one)")
    with initialize_config_dir(config_dir=str(folders[0]), version_base="1.3"):
        if len(folders) > 1:
            search_path = GlobalHydra.instance().config_loader().get_search_path()
            search_path.prepend("lowerdeck", str(folders[1]), anchor="schema")  # after the workspace's own
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2("lowerdeck", search_path)
        yield


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.yaml") if not path.is_dir())
