"""Child process of probe.py: executes every method of a program once, on zeros.

Run as a script. Standard input is a line of JSON and then, for ExecuTorch's runtime, the `.pte`. The JSON has `calls`:
method name -> inputs (a plain value, or shape, strides and dtype of a tensor). For host twins it also has `twins`, the
arguments of `_twin_program`; the partition whose twin is opened or executed is written to standard output.

The exit code is 0 on success and 1, with a message, where ExecuTorch's runtime reports an error; a crash ends the
process by a signal.
"""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    """Execute the program that standard input describes."""
    request = sys.stdin.buffer
    described = json.loads(request.readline())
    data = request.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result, nothing to debug
    if described["twins"] is not None:
        try:
            program = _twin_program(**described["twins"])
            _execute(lambda method, values: program(values, method=method), described["calls"])
        except Exception as error:  # not a crash: the caller meets it again, and knows what to say
            print(error, file=sys.stderr)
        return 0

    from executorch.extension.pybindings import _C
    from executorch.kernels import quantized  # noqa: F401

    try:
        module = _C._load_for_executorch_from_buffer(data)
        _execute(module.run_method, described["calls"])
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _execute(run: Callable[[str, tuple[Any, ...]], Any], calls: dict[str, list[Any]]) -> None:
    import torch

    for method, inputs in calls.items():
        values = [
            torch.empty_strided(value["shape"], value["strides"], dtype=getattr(torch, value["dtype"])).zero_()
            if isinstance(value, dict)
            else value
            for value in inputs
        ]
        run(method, tuple(values))


def _twin_program(program: str, manifest: str | None, folder: str | None, resolver: str, num_threads: int) -> Any:
    """The program with its host twins, each of which announces itself."""
    from lowerdeck.formats.pte import Delegate, read_pte
    from lowerdeck.runtime.interpreter import Interpreter
    from lowerdeck.runtime.program import HostProgram
    from lowerdeck.runtime.twins import TwinFinder, read_manifest

    find_twin = TwinFinder(
        manifest=None if manifest is None else read_manifest(Path(manifest)),
        folder=None if folder is None else Path(folder),
        resolver=resolver,
        num_threads=num_threads,
    )
    found: list[_Announced] = []

    def announced(delegate: Delegate) -> Any:
        name = f"partition {len(found)} for {delegate.backend}"
        if file := find_twin.stored_name(delegate):
            name += f", whose host twin is {Path(str(folder)) / file}"
        print(name, flush=True)
        found.append(_Announced(find_twin(delegate), name))
        return found[-1]

    methods = read_pte(Path(program).read_bytes())
    return HostProgram(methods, Interpreter(methods, announced))


class _Announced:
    """A host twin that writes its name to standard output before it is executed."""

    def __init__(self, twin: Any, name: str) -> None:
        self._twin, self._name, self.description = twin, name, twin.description

    def check(self, arguments: Any) -> None:
        self._twin.check(arguments)

    def __call__(self, arguments: Any) -> None:
        print(self._name, flush=True)
        self._twin(arguments)


if __name__ == "__main__":
    sys.exit(main())
