"""An HTML template for `dvc plots show` that contains Vega, for plots without a network.

DVC's own page loads Vega from a content delivery network. This template is generated from the scripts in the package
vl-convert-python, and git-ignored like the rest of .dvc/tmp.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lowerdeck.artifacts.files import write_text
from lowerdeck.contracts.errors import LowerdeckError

TEMPLATE = Path(".dvc") / "tmp" / "lowerdeck_plots.html"

# DVC replaces {refresh_tag} and {plot_divs}. The third placeholder, {scripts}, would load Vega from the network.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{refresh_tag}
<title>Plots</title>
<script>
(function () {
/* VEGA */
})();
</script>
<style>body { font-family: system-ui, sans-serif; } table { border-spacing: 15px; }</style>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def install() -> Path:
    """Write the template and have DVC use it in this clone.

    Raises:
        LowerdeckError: this is not a DVC repository, or vl-convert-python is missing.
    """
    if not Path(".dvc").is_dir():
        raise LowerdeckError("there is no .dvc folder here; run this command in the folder of the repository")
    write_text(TEMPLATE, page(vega_scripts()))
    # In the clone's local configuration: without the file, DVC would use its path as the template's text.
    setting = ["config", "--local", "plots.html_template", TEMPLATE.relative_to(".dvc").as_posix()]
    done = subprocess.run([sys.executable, "-P", "-m", "dvc", *setting], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LowerdeckError(f"`dvc {' '.join(setting)}` failed: {done.stderr.strip()}")
    return TEMPLATE


def page(scripts: str) -> str:
    """The template with `scripts`, in a scope of their own: DVC's plots declare global names, which could collide."""
    for unusable in ("</script", "{plot_divs}", "{refresh_tag}"):
        assert unusable not in scripts, unusable
    return _PAGE.replace("/* VEGA */", scripts)


def vega_scripts() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `window.vegaEmbed`.

    Raises:
        LowerdeckError: vl-convert-python is missing.
    """
    try:
        import vl_convert
    except ImportError:
        raise LowerdeckError(
            "the package vl-convert-python is missing; `pip install vl-convert-python` or `make setup` installs it"
        ) from None
    # DVC's plots use Vega-Lite 5; a later major version draws them with warnings.
    version = [version for version in vl_convert.get_vegalite_versions() if version.startswith("5.")][-1]
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))
