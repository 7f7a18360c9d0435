"""What pyproject.toml cannot say: the wheel has the files of a workspace in the package; here they lie beside it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithWorkspace(build_py):
    """Copies the files of a workspace into the package; an editable installation finds them in the repository."""

    def run(self) -> None:
        """Build the package, then add the files."""
        super().run()
        if not self.editable_mode:
            patterns = Path("pipeline/lowerdeck/workspace/contents.txt").read_text(encoding="utf-8").split()
            found = {pattern: [path for path in Path().glob(pattern) if path.is_file()] for pattern in patterns}
            if missing := [pattern for pattern, paths in found.items() if not paths]:
                raise SystemExit(f"no file here matches {', '.join(missing)} of contents.txt; is MANIFEST.in complete?")
            for path in {path for paths in found.values() for path in paths}:
                # DVC would take a dvc.yaml for its own where the installed package is linked into a workspace.
                name = path if path.parts[0] == "conf" else f"{path}.packed"
                place = Path(self.build_lib, "lowerdeck", "workspace", "files", name)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


setup(cmdclass={"build_py": BuildWithWorkspace})
