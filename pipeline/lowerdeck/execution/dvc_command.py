"""DVC's command line without the lines that say nothing to users of `lowerdeck repro`.

`python -m lowerdeck.execution.dvc_command ARGUMENT...` takes the arguments of `dvc`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from lowerdeck.compat import dvc

MODULE = "lowerdeck.execution.dvc_command"
_SILENT = {
    "dvc.repo.reproduce": "is frozen",  # as what made the bundled data is meant to be
    "dvc.output": "is empty",  # a folder of pictures, where the task draws none
}
"""Logger -> what messages that are left out contain."""
_ADVICE = "Use `dvc push`"


def main(arguments: Sequence[str]) -> int:
    """Run DVC, and return its exit status."""
    from dvc.cli import main as run

    for name, text in _SILENT.items():
        logging.getLogger(name).addFilter(lambda record, text=text: text not in record.getMessage())  # type: ignore[misc]
    write = dvc.CONSOLE_WRITE.original()

    def write_news(console: Any, *objects: Any, **options: Any) -> None:
        if not (objects and str(objects[0]).startswith(_ADVICE)):
            write(console, *objects, **options)

    with dvc.CONSOLE_WRITE.active(write_news):
        return int(run(list(arguments)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
