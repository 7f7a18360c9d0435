"""Child process of native.py: loads a `.pte` into ExecuTorch's runtime and executes every method once, on zeros.

Run as a script. Standard input is a line of JSON, method name -> inputs (a plain value, or shape, strides and dtype of
a tensor), then the `.pte`. The exit code is 0 on success and 1, with a message, where the runtime reports an error; a
crash of the runtime ends it by a signal.
"""

import json
import resource
import sys


def main() -> int:
    """Execute the program on standard input."""
    request = sys.stdin.buffer
    calls = json.loads(request.readline())
    data = request.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result, nothing to debug

    import torch
    from executorch.extension.pybindings import _C
    from executorch.kernels import quantized  # noqa: F401

    try:
        module = _C._load_for_executorch_from_buffer(data)
        for method, inputs in calls.items():
            values = [
                torch.empty_strided(value["shape"], value["strides"], dtype=getattr(torch, value["dtype"])).zero_()
                if isinstance(value, dict)
                else value
                for value in inputs
            ]
            module.run_method(method, tuple(values))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
