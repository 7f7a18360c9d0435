"""What a `.pte` requires of the runtime that executes it, derived from the file alone."""

from __future__ import annotations

import itertools

from lowerdeck.contracts.runtime_images import OperatorUse, Requirements
from lowerdeck.formats.pte import DTYPE_NAMES, IDENTIFIER, Boxed, DelegateCall, KernelCall, Method, TensorSpec, read_pte

_ALIGNMENT_BYTES = 16
"""Alignment of the program that ExecuTorch's runtime 1.x asks for (Program::kMinHeadBytes, alignof max_align_t)."""


def requirements(data: bytes) -> Requirements:
    """The requirements of all methods.

    Operators that are called with different numbers of arguments are listed once for each number.

    Raises:
        ValueError: the file is no `.pte` or is damaged.
    """
    methods = read_pte(data)
    uses: dict[tuple[str, int], tuple[set[str], set[tuple[int, ...]]]] = {}
    delegates: dict[str, int] = {}
    for method in methods:
        for instruction in itertools.chain(*method.chains):
            if isinstance(instruction, KernelCall):
                key = method.operators[instruction.operator], len(instruction.args)
                dtypes, orders = uses.setdefault(key, (set(), set()))
                for _, spec in argument_tensors(method, instruction.args):
                    dtypes.add(DTYPE_NAMES.get(spec.scalar_type, f"scalar type {spec.scalar_type}"))
                    orders.add(spec.dim_order)
            elif isinstance(instruction, DelegateCall):
                backend = method.delegates[instruction.delegate].backend
                delegates[backend] = delegates.get(backend, 0) + 1
    return Requirements(
        schema_identifier=IDENTIFIER.decode(),
        operators=[
            OperatorUse(name=name, num_args=num_args, dtypes=tuple(sorted(dtypes)), dim_orders=tuple(sorted(orders)))
            for (name, num_args), (dtypes, orders) in sorted(uses.items())
        ],
        delegates=delegates,
        # Methods of one program share its arenas; number 0 is reserved.
        planned_bytes=[
            max(sizes) for sizes in itertools.zip_longest(*(method.arena_bytes[1:] for method in methods), fillvalue=0)
        ],
        input_bytes=max(map(_input_bytes, methods)),
        program_bytes=len(data),
        alignment_bytes=_ALIGNMENT_BYTES,
    )


def argument_tensors(method: Method, args: tuple[int, ...]) -> list[tuple[int, TensorSpec]]:
    """Tensors among the arguments of a call, those in lists included: (index of the value, what it is)."""
    found = []
    for index in args:
        value = method.values[index]
        for item in value.items if isinstance(value, Boxed) else (index,):
            if item >= 0 and isinstance(spec := method.values[item], TensorSpec):
                found.append((item, spec))
    return found


def _input_bytes(method: Method) -> int:
    return sum(spec.size_bytes for _, spec in argument_tensors(method, method.inputs))
