"""Real virtual environments with small packages that have the interface of NXP's converters.

The packages are made of the project's reference flavor, whose code they rename, so that they convert for real.
"""

from __future__ import annotations

import textwrap
import venv
from dataclasses import dataclass
from pathlib import Path

import flatbuffers
import numpy as np

from lowerdeck import compat
from lowerdeck.backends.neutron import reference
from lowerdeck.formats import flatbuffer, flatbuffer_writer, litert

REFERENCE = Path(reference.__file__).parent
# What the copies import; the interpreter of an environment has none of it.
SITE = {Path(module.__file__ or "").parents[1] for module in (np, flatbuffers)}


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one package."""

    python: Path
    package: Path
    """Folder of the package, to be changed by tests."""

    def options(self, **options: object) -> dict[str, object]:
        """`flavor.options` for it."""
        return {"module": self.package.name, "python": str(self.python), **options}

    def append(self, module: str, code: str) -> None:
        """Let the package's `module` end with `code`."""
        path = self.package / f"{module}.py"
        path.write_text(f"{path.read_text()}\n\n{textwrap.dedent(code)}")


def make(folder: Path, package: str = "eiq_neutron_sdk", version: str | None = "3.1.3") -> Environment:
    """A new environment in `folder`, without pip; the package says its version by its distribution only.

    Args:
        folder: Where to make it.
        package: Name of the package to install.
        version: Of its distribution; None for a package that belongs to none.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "test.pth").write_text("\n".join(map(str, sorted(SITE))))
    installed = site / package
    for part in ("formats", "compat"):
        (installed / part).mkdir(parents=True)
        (installed / part / "__init__.py").touch()
    sources = {installed / source.name: source for source in REFERENCE.glob("*.py")}
    for module in (flatbuffer, flatbuffer_writer, litert):
        source = Path(str(module.__file__))
        sources[installed / "formats" / source.name] = source
    for name in ("flatbuffers.py", "replacement.py"):
        sources[installed / "compat" / name] = Path(compat.__path__[0]) / name
    for place, source in sources.items():
        text = source.read_text().replace("lowerdeck.backends.neutron.reference", package)
        for part in ("formats", "compat"):
            text = text.replace(f"lowerdeck.{part}", f"{package}.{part}")
        place.write_text(text)
    init = installed / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = f"reference-{FORMAT_VERSION}"\n', "").replace(
        '"__version__", ', ""
    ))  # fmt: skip
    if version is not None:
        info = site / f"{package}-{version}.dist-info"
        info.mkdir()
        name = package.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
    return Environment(folder / "bin" / "python", installed)


RESULT_AS = {
    "bytes": "return done",
    "bytearray": "return bytearray(done)",
    "list": "return list(done)",
    "uint8 array": "import numpy as np; return np.frombuffer(done, dtype=np.uint8)",
    "int8 array": "import numpy as np; return np.frombuffer(done, dtype=np.int8)",
    "wide array": "import numpy as np; return np.array(list(done))",
    "signed list": "return [byte - 256 if byte > 127 else byte for byte in done]",
}
"""Ways in which a converter may give its result, as ends of a function that has it in `done`."""


def replace_convert(environment: Environment, body: str) -> None:
    """Let convertModel(model, context) have `body`, in which original(model, context) converts for real."""
    environment.append(
        "neutron_converter",
        "original = convertModel\n\ndef convertModel(model, context):\n"
        + textwrap.indent(textwrap.dedent(body), "    "),
    )
