"""What pyproject.toml cannot say: the wheel has conf/, which lies beside the package, in the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithOptions(build_py):
    """Copies the options of conf/ into the package; an editable installation finds them in the repository."""

    def run(self) -> None:
        """Build the package, then add the options."""
        super().run()
        if not self.editable_mode:
            shutil.copytree("conf", Path(self.build_lib, "lowerdeck", "conf"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithOptions})
