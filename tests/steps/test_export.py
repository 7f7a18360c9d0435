"""lowerdeck.steps.export: what no later stage can take is refused at once, with what to write instead."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch._higher_order_ops import while_loop
from torch.nn.attention.flex_attention import flex_attention

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats import pt2
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.outputs import output_names
from lowerdeck.steps.export import export


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda x: None, "None"),
        (lambda x: (x * 2, None), "None"),
        (lambda x: 3, "the number 3"),
        (lambda x: (x * 2, 0.5), "the number 0.5"),
        (lambda x: (x * 2, "name", True), "the text 'name', True"),
        (
            lambda x: x.tolist(),
            r"a number that it computes of tensors \(by tolist\(\) or item\(\): return the tensor\)",
        ),
        (lambda x: (x, x.sum().item(), None), r"a number that it .* the tensor\), None"),
        (lambda x: (), "nothing"),
        (lambda x: {"out": x, "loss": None}, "None"),
    ],
)
def test_outputs_have_to_be_tensors(answer: Callable[[torch.Tensor], Any], named: str) -> None:
    with pytest.raises(LowerdeckError, match=f"Calls returns {named}; .*Wrap the model"):
        export(Calls(answer), [[1, 4]])


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_parameters_have_to_be_finite_and_masks_need_not(value: float) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.unused = nn.Linear(4, 4), nn.Parameter(torch.tensor([value]))
            self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.fc(x) + self.mask, -1)

    model = Net()
    export(model, [[1, 4]])
    model.fc.bias.data[0] = value
    with pytest.raises(LowerdeckError, match=r"NaN or infinite: fc\.bias \(1 of 4\); .* choose an earlier checkpoint"):
        export(model, [[1, 4]])


def halved(x: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5)
    return x + 1


def first_column_doubled(x: torch.Tensor) -> torch.Tensor:
    x[:, 0].mul_(2.0)
    return x + 1


def second_column_cleared(x: torch.Tensor) -> torch.Tensor:
    x[:, 1:2] = 0
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        *(halved, first_column_doubled, second_column_cleared, torch.neg_),
        *(torch.Tensor.logical_not_, lambda x: x.gt_(0), lambda x: x.eq_(0) + 1, lambda x: torch.add(x, x, out=x)),
        lambda x: F.relu(x.sub_(0.5).div_(2.0), inplace=True),
    ],
)
def test_inputs_that_the_model_changes_stay_as_they_are(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program, given = export(Calls(function), [[1, 4]]), torch.randn(1, 4)
    kept = given.clone()
    torch.testing.assert_close(program.module()(given), function(kept.clone()), rtol=0, atol=0)
    assert torch.equal(given, kept)


def test_an_input_that_is_written_keeps_its_dtype() -> None:
    """The product was computed in float32, where the model's overflows."""

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return x.mul_(factor).sum(1)

    program = export(Scaled(), [[1, 4], [1, 4]], input_dtypes=["float16", "float32"])
    result = program.module()(torch.full((1, 4), 300.0).half(), torch.full((1, 4), 300.0))
    assert (result.dtype, result.item()) == (torch.float16, torch.inf)


@dataclasses.dataclass
class Answer:
    """What torch.export refuses until it is registered."""

    logits: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (lambda x: x + 1, ["output"]),
        (lambda x: [x + 1], ["output_0"]),
        (lambda x: (x + 1, x * 2), ["output_0", "output_1"]),
        (lambda x: {"z": x + 1, "a": [x, (x * 2,)]}, ["z", "a.0", "a.1.0"]),
        (lambda x: {"a.b": x + 1, "a": {"b": x * 2}}, ["a.b", "a.b_"]),
        (lambda x: OrderedDict(q=x + 1, p=x - 1), ["q", "p"]),
        (lambda x: Pair(x + 1, x * 2), ["first", "second"]),
        (lambda x: (x, x.max(-1)), ["output_0", "output_1.values", "output_1.indices"]),
        (lambda x: Answer(x + 1, (x * 2, x - 1)), ["logits", "hidden_states.0", "hidden_states.1"]),
    ],
)
def test_outputs_are_named_by_their_paths_here_and_in_another_process(
    answer: Callable[[torch.Tensor], Any], names: list[str], tmp_path: Path
) -> None:
    program = export(Calls(answer), [[1, 4]])
    assert output_names(program) == names
    with (tmp_path / "program.pt2").open("wb") as file:
        pt2.save(program, file)
    loaded = pt2.load(tmp_path / "program.pt2")
    assert output_names(loaded) == names
    assert "Answer" not in str(loaded.call_spec.out_spec)


def test_inputs_of_any_dtype() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 3)

        def forward(self, ids: torch.Tensor, keep: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.embedding(ids).sum(1) * keep.float() + pixels.float().mean()
            return result

    program = export(Tokens(), [[1, 4], [1, 1], [1, 2]], input_dtypes=["int64", "bool", "uint8"])
    assert [str(dtype) for dtype in input_dtypes(program)] == ["torch.int64", "torch.bool", "torch.uint8"]
    with pytest.raises(LowerdeckError, match=r"inputs of shape \[1, 4\], \[1, 1\], \[1, 2\]"):
        export(Tokens(), [[1, 4], [1, 1], [1, 2]])


@pytest.mark.parametrize(
    ("weights", "dtypes"),
    [(torch.float32, ["bfloat16"]), (torch.float32, ["float16"]), (torch.float32, ["float64"]), (torch.bfloat16, [])],
)
def test_inputs_of_another_dtype_than_the_weights_are_refused(weights: torch.dtype, dtypes: list[str]) -> None:
    """Behind linear layers, PyTorch's own error ended the check of the task; no message named the key."""
    given = dtypes[0] if dtypes else "float32"
    stored = str(weights).removeprefix("torch.")
    said = rf"\nInputs are {given} \(model.input_dtypes; .*weights {stored}. Set model.input_dtypes to {stored}, "
    for layer, shape in ((torch.nn.Linear(4, 4), [1, 4]), (torch.nn.Conv2d(3, 3, 3), [1, 3, 8, 8])):
        with pytest.raises(LowerdeckError, match=said):
            export(layer.to(weights), [shape], input_dtypes=dtypes)


def test_a_model_may_cast_its_inputs() -> None:
    class Casting(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(self.weight.dtype))

    assert export(Casting(4, 4), [[1, 4]], input_dtypes=["bfloat16"]).graph_signature.user_outputs


def test_an_output_whose_size_depends_on_values_is_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"whose size depends on values.*torch.topk"):
        export(Calls(lambda x: x[x > 0]), [[1, 4]])


def test_operators_of_other_libraries_are_refused_with_their_place() -> None:
    boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
    network = Calls(lambda x: torchvision.ops.roi_align(x, boxes, 2))
    with pytest.raises(
        LowerdeckError,
        match=r"\(torchvision\.roi_align.*test_export\.py:\d+\) is an operator of the library 'torchvision'",
    ):
        export(network, [[1, 2, 8, 8]])


def test_loops_until_a_condition_are_refused_with_their_place() -> None:
    """Calibrate, quantize or convert failed, each target in another way."""
    network = Calls(
        lambda x: while_loop(  # type: ignore[no-untyped-call]
            lambda y: y.sum() < 9, lambda y: (y * 2 + 1,), (x,)
        )[0]
    )
    with pytest.raises(
        LowerdeckError, match=r"have no while_loop: .*\(while_loop, .*test_export\.py:\d+\)\n.* `for _ in range\(N\):`"
    ):
        export(network, [[1, 4]])


def test_flex_attention_is_refused_with_what_to_write() -> None:
    network = Calls(lambda x: flex_attention(x, x, x))
    with pytest.raises(
        LowerdeckError, match=r"have no flex_attention: .*test_export\.py:\d+\)\n.* F\.scaled_dot_product_attention\("
    ):
        export(network, [[1, 1, 8, 4]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: x + 0 * torch.randn_like(x),
        lambda x: F.alpha_dropout(x, 0.2, training=True),
        lambda x: torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.3), lambda x: x + 1, (x,)),
    ],
)
def test_random_models_are_refused_with_the_place(function: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(LowerdeckError, match=r"\(aten\..*test_export\.py:\d+\) is random.*\n.*training=self\.training"):
        export(Calls(function), [[1, 4]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.3, training=False),
        lambda x: F.dropout(x, 0.0),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
)
def test_what_draws_nothing_is_not_random(function: Callable[[torch.Tensor], Any]) -> None:
    assert output_names(export(Calls(function), [[1, 4]])) == ["output"]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda size: nn.InstanceNorm2d(size, track_running_stats=True)])
def test_norms_in_training_mode_are_refused_with_their_place(norm: Callable[[int], nn.Module]) -> None:
    """Three stages passed, and partition named an operator of PyTorch's decomposition."""

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(3)

        def train(self, mode: bool = True) -> Training:
            super().train(mode)
            self.norm.train()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x).relu()  # type: ignore[no-any-return]

    place = r"_norm \(aten\..*, norm, .*test_export\.py:\d+\)"
    with pytest.raises(LowerdeckError, match=rf"{place} computes as in training.*\n.*model\.eval\(\)"):
        export(Training(), [[1, 3, 8, 8]])


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3, track_running_stats=False), nn.InstanceNorm2d(3), nn.BatchNorm2d(3), nn.Dropout(0.0)]
)
def test_norms_without_statistics_are_no_training_mode(norm: nn.Module) -> None:
    assert export(nn.Sequential(norm), [[1, 3, 8, 8]]).graph_signature.user_outputs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: torch.complex(x, x),
        lambda x: torch.cond(x.sum() > 0, lambda x: torch.complex(x, x).abs(), lambda x: x + 1, (x,)),
    ],
)
def test_complex_numbers_are_refused_with_their_place(function: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(
        LowerdeckError, match=r"\(aten\..*test_export\.py:\d+\) has complex numbers.*\n.*two matrix products"
    ):
        export(Calls(function), [[1, 4]])


@pytest.mark.parametrize("persistent", [True, False])
def test_complex_buffers_that_nothing_reads_are_left_out(persistent: bool, tmp_path: Path) -> None:
    """As a table of rotations that another method reads."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.register_buffer("rotations", torch.ones(3, dtype=torch.complex64), persistent=persistent)
            self.register_buffer("kept", torch.ones(3), persistent=persistent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(x)
            return result

    model = Tables().eval()
    torch.export.save(export(model, [[1, 4]]), tmp_path / "program.pt2")
    program = torch.export.load(tmp_path / "program.pt2")
    assert set(program.state_dict) == {"head.weight", "head.bias", "kept"}
    sample = torch.randn(1, 4)
    assert torch.equal(program.module()(sample), model(sample))


def test_sparse_tensors_are_refused_by_name() -> None:
    """torch raised NotImplementedError: Cannot access storage of SparseTensorImpl, when it saved the program."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adjacency = torch.eye(4).to_sparse()

        def forward(self, x: torch.Tensor) -> Any:
            return torch.sparse.mm(self.adjacency, x)

    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.sparse.mm(x.to_sparse(), x)

    with pytest.raises(LowerdeckError, match=r"^adjacency is sparse.*\nRegister .* `\.to_dense\(\)`"):
        export(Graph(), [[4, 4]])
    graph = Graph()
    graph.adjacency = torch.eye(4).to_sparse_csr()
    with pytest.raises(LowerdeckError, match=r"\nPrograms have dense tensors only: call `\.to_dense\(\)`"):
        export(graph, [[4, 4]])
    with pytest.raises(LowerdeckError, match=r"to_sparse.*test_export\.py:\d+\) is sparse"):
        export(Made(), [[4, 4]])


def test_control_flow_that_depends_on_values_is_explained() -> None:
    with pytest.raises(LowerdeckError, match=r"(?s)depends on the values of tensors.*torch\.where or torch\.cond"):
        export(Calls(lambda x: x + 1 if x.sum() > 0 else x), [[1, 4]])


@pytest.mark.parametrize("size", [1, 2, (4, 2), (8, 8)])
def test_adaptive_max_pooling_with_dividing_sizes_is_max_pooling(size: Any) -> None:
    program = export(Calls(lambda x: F.adaptive_max_pool2d(x, size) * 2), [[1, 3, 8, 8]])
    sample = torch.randn(1, 3, 8, 8)
    assert torch.equal(program.module()(sample), F.adaptive_max_pool2d(sample, size) * 2)
    assert not [node for node in program.graph.nodes if "adaptive" in str(node.target)]


def test_adaptive_max_pooling_may_be_the_output_and_have_one_dimension() -> None:
    for function, shape in ((F.adaptive_max_pool2d, (1, 3, 8, 8)), (F.adaptive_max_pool1d, (1, 3, 8))):
        program = export(Calls(lambda x, function=function: function(x, 2)), [list(shape)])  # type: ignore[misc]
        sample = torch.randn(shape)
        assert torch.equal(program.module()(sample), function(sample, 2))


@pytest.mark.parametrize(
    ("shape", "size"),
    [((8, 8), 3), ((9, 11), (3, 4)), ((5, 12), (7, 6)), ((7, 8), (7, 3)), ((1, 1), 2), ((1, 6), (3, 2))],
)
def test_adaptive_max_pooling_with_other_sizes_puts_its_windows_together(
    shape: tuple[int, ...], size: int | tuple[int, ...]
) -> None:
    program = export(Calls(lambda x: F.adaptive_max_pool2d(x, size)), [[1, 3, *shape]])
    sample = torch.randn(1, 3, *shape)
    assert torch.equal(program.module()(sample), F.adaptive_max_pool2d(sample, size))
    program = export(Calls(lambda x: F.adaptive_max_pool1d(x, 5)), [[1, 3, shape[1]]])
    assert torch.equal(program.module()(sample[:, :, 0]), F.adaptive_max_pool1d(sample[:, :, 0], 5))


def test_indices_of_adaptive_max_pooling_are_refused_with_their_place() -> None:
    with pytest.raises(LowerdeckError, match=r"adaptive_max_pool2d.*test_export\.py:\d+.*returns indices"):
        export(Calls(lambda x: F.adaptive_max_pool2d(x, 4, return_indices=True)), [[1, 3, 8, 8]])


@pytest.mark.parametrize("prepare", ["prepare", "prepare_qat"])
def test_models_that_were_prepared_for_quantization_are_refused(prepare: str) -> None:
    """No backend has kernels for what observes and rounds; the float model in them is built as ever."""
    quantization: Any = torch.ao.quantization  # without annotations

    model: Any = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 2), quantization.DeQuantStub())
    model.train(prepare == "prepare_qat")
    assert export(model, [[1, 4]]).graph.nodes
    model.train(prepare == "prepare_qat")
    model.qconfig = quantization.get_default_qat_qconfig() if prepare == "prepare_qat" else quantization.default_qconfig
    prepared = getattr(quantization, prepare)(model)
    with pytest.raises(LowerdeckError, match=r"has been prepared by torch\.ao\.quantization: 0\.activation") as no:
        export(prepared, [[1, 4]])
    assert "Name the float model, which quantization.scheme quantizes; `quantization: int8_qat`" in str(no.value)
