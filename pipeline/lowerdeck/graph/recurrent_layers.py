"""Recurrent layers as linear layers and element-wise operators, which quantizers and backends know.

torch.export keeps GRU, LSTM and RNN as one node each. No quantizer annotates it, and lowering makes `addmm` of it,
which no backend with integers takes. Formulas are those of torch.nn.GRUCell, LSTMCell and RNNCell. Sequences are
unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

State: TypeAlias = "tuple[Tensor, ...]"
"""The hidden state, and for an LSTM the cell state, [batch x hidden] each."""
Step: TypeAlias = "Callable[[Tensor, Tensor, State], State]"
"""Shares of the input and of the hidden state in the gates, [batch x gates * hidden] each, and the state -> the next
state."""


class RecurrentAsLinear(TorchFunctionMode):
    """While it is active, recurrent layers compute the same with linear layers.

    Those with packed sequences, in training mode or of varying length stay as they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See TorchFunctionMode."""
        name = getattr(func, "__name__", "")
        if name in _CELLS and not kwargs:
            return _cell(_CELLS[name], *args)
        if name in _SEQUENCES and not kwargs and _is_plain(name, args):
            return _sequence(_SEQUENCES[name], *args)
        return func(*args, **(kwargs or {}))


def _gru(given: Tensor, kept: Tensor, state: State) -> State:
    reset, update, new = given.chunk(3, 1)
    kept_reset, kept_update, kept_new = kept.chunk(3, 1)
    update = torch.sigmoid(update + kept_update)
    new = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
    return (new + update * (state[0] - new),)


def _lstm(given: Tensor, kept: Tensor, state: State) -> State:
    enter, forget, cell, leave = (given + kept).chunk(4, 1)
    cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def _rnn(activation: Callable[[Tensor], Tensor], given: Tensor, kept: Tensor, state: State) -> State:
    return (activation(given + kept),)


_SEQUENCES: dict[str, Step] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_tanh": partial(_rnn, torch.tanh),
    "rnn_relu": partial(_rnn, torch.relu),
}
_CELLS = {f"{name}_cell": step for name, step in _SEQUENCES.items()}


def _cell(
    step: Step,
    values: Tensor,
    state: Any,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> Any:
    """`torch.gru_cell` and its like; an LSTM takes and gives a tuple."""
    before = (state,) if isinstance(state, Tensor) else tuple(state)
    found = step(linear(values, of_input, input_bias), linear(before[0], of_state, state_bias), before)
    return found[0] if isinstance(state, Tensor) else found


def _is_plain(name: str, args: Sequence[Any]) -> bool:
    """Whether it is a layer whose steps can be written one after the other."""
    if len(args) != 9 or not isinstance(args[2], list | tuple):
        return False  # packed
    values, _, weights, _, num_layers, _, training, bidirectional, batch_first = args
    length = values.shape[1 if batch_first and values.dim() == 3 else 0]
    plain = len(weights) % (num_layers * (2 if bidirectional else 1)) == 0
    return plain and not training and isinstance(length, int) and values.dim() == 3


def _sequence(
    step: Step,
    values: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """`torch.gru` and its like: the outputs of all steps, and the last states of all layers and directions."""
    initial = (state,) if isinstance(state, Tensor) else tuple(state)
    found, last = values.transpose(0, 1) if batch_first else values, list[State]()
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (num_layers * directions)  # with one more where states are projected
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = weights[number * per_direction : (number + 1) * per_direction]
            output, end = _direction(step, found, tuple(one[number] for one in initial), own, direction == 1)
            outputs.append(output)
            last.append(end)
        found = outputs[0] if directions == 1 else torch.cat(outputs, dim=2)
    states = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    return (found.transpose(0, 1) if batch_first else found, *states)


def _direction(
    step: Step, values: Tensor, state: State, weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, State]:
    """Outputs [steps x batch x hidden] of one layer in one direction, and its last state."""
    of_input, of_state = weights[:2]
    input_bias, state_bias = weights[2:4] if len(weights) >= 4 else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    given, found = linear(values, of_input, input_bias), []
    for row in reversed(range(len(given))) if backwards else range(len(given)):
        state = step(given[row], linear(state[0], of_state, state_bias), state)
        state = state if projection is None else (linear(state[0], projection), *state[1:])
        found.append(state[0])
    return torch.stack(found[::-1] if backwards else found), state
