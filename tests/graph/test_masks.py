"""lowerdeck.graph.masks: finite numbers where a softmax reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.graph.masked_scores import MASKED
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

SHAPE = [1, 8, 16]
LATER = torch.ones(8, 8).triu(1).bool()
INFINITE = torch.zeros(8, 8).masked_fill(LATER, -torch.inf)


def samples() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(2)]


class Masked(nn.Module):
    """scaled_dot_product_attention with a mask of the model."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask: torch.Tensor
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=self.mask)


@pytest.mark.parametrize("mask", [INFINITE, ~LATER])
def test_attention_with_a_constant_mask_becomes_products(mask: torch.Tensor) -> None:
    network = Masked(mask).eval()
    program = export(network, [SHAPE])
    targets = {str(node.target) for node in program.graph.nodes}
    assert "aten.scaled_dot_product_attention.default" not in targets
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), network(*sample))


@pytest.mark.parametrize("mask", [INFINITE, LATER], ids=["float", "bool"])
def test_layers_of_pytorch_share_a_mask(mask: torch.Tensor) -> None:
    """torch.nn.MultiheadAttention fills a bool mask into zeros, in place."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask: torch.Tensor
            self.register_buffer("mask", mask)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x, src_mask=self.mask)
            return x

    network = Encoder().eval()
    program = export(network, [SHAPE])
    targets = [str(node.target) for node in program.graph.nodes]
    assert "aten.scaled_dot_product_attention.default" not in targets
    assert not any("fill" in target or "zeros" in target for target in targets)
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), network(*sample))


def test_a_mask_that_leaves_a_query_nothing_stays() -> None:
    """Its result is 0, and that of a softmax NaN."""
    nothing = INFINITE.clone()
    nothing[2] = -torch.inf
    network = Masked(nothing).eval()
    program = export(network, [SHAPE])
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), network(*sample))


@pytest.mark.parametrize(
    ("mask", "dim"),
    [(LATER | (torch.arange(8)[:, None] == 3), -1), (torch.arange(8) == 2, 1), (torch.ones(1, dtype=torch.bool), -1)],
)
def test_a_row_that_a_filled_mask_leaves_nothing_of_has_equal_weights(mask: torch.Tensor, dim: int) -> None:
    """Its number was added to all scores of the row, which then had the weights that they have without a mask."""

    class Filled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.transpose(1, 2)).masked_fill(mask, -1e9).softmax(dim)

    program = export(Filled(), [SHAPE])
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), Filled()(*sample))


@pytest.mark.parametrize("moved", ["transposed", "divided", "copied"])
def test_a_row_is_followed_to_the_softmax(moved: str) -> None:
    """The last dimension was taken for that of the softmax wherever something else read the scores first."""
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, 2] = True

    class Moved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.transpose(1, 2)).masked_fill(mask, -1e9)
            if moved == "transposed":
                return scores.transpose(1, 2).softmax(-1)
            if moved == "divided":
                return scores.reshape(1, 8, 2, 4).softmax(1)
            return scores.clone().softmax(1)

    for sample in samples():
        torch.testing.assert_close(export(Moved(), [SHAPE]).module()(*sample), Moved()(*sample))


def test_a_mask_that_leaves_something_of_every_row_that_is_read_is_added() -> None:
    """Keys of padding, with the batch and the heads joined in front of the softmax."""

    class Joined(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 8, 2, 8).transpose(1, 2)
            scores = (heads @ heads.transpose(2, 3)).masked_fill(torch.arange(8) > 5, -torch.inf)
            return scores.view(2, 8, 8).softmax(-1)

    program = export(Joined(), [SHAPE])
    assert torch.ops.aten.masked_fill.Scalar not in {node.target for node in program.graph.nodes}
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), Joined()(*sample))


def test_heads_may_be_joined_with_the_queries() -> None:
    """A view of a mask that is the same for all heads is none of what torch has in memory."""

    class Joined(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(1, 8, 2, 8).transpose(1, 2)
            return (heads @ heads.transpose(2, 3)).masked_fill(LATER, -torch.inf).view(-1, 8).softmax(-1)

    for sample in samples():
        torch.testing.assert_close(export(Joined(), [SHAPE]).module()(*sample), Joined()(*sample))


def test_scores_that_are_read_twice_are_followed_once() -> None:
    """Each doubled the time, so that this one would not end."""

    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.transpose(1, 2)).masked_fill(LATER, -1e9)
            for _ in range(40):
                scores = torch.where(LATER, scores, scores + 0.1)
            return scores.softmax(-1)

    for sample in samples():
        torch.testing.assert_close(export(Repeated(), [SHAPE]).module()(*sample), Repeated()(*sample))


PADDED = INFINITE.index_add(1, torch.tensor([0]), torch.full((8, 1), -1e5))
UNLIKELY = torch.stack([torch.tensor([-1e4, -2e4] + [-torch.inf] * 6), *[torch.zeros(8)] * 7])


@pytest.mark.parametrize("mask", [PADDED, UNLIKELY, UNLIKELY.clamp(min=-3e4)], ids=["padded", "unlikely", "finite"])
@pytest.mark.parametrize("dim", [-1, -2])
def test_a_row_that_says_what_is_more_likely_is_heeded_beside_others(mask: torch.Tensor, dim: int) -> None:
    """Only masks of one such row were, and the others had the weights of the scores."""

    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = -x @ x.transpose(1, 2) + (mask if dim == -1 else mask.mT)
            return scores.view(1, 1, 8, 8).softmax(dim)

    program = export(Weighted(), [SHAPE])
    if dim == -1 and bool(mask.isinf().any()):
        constants = [each for each in program.constants.values() if each.is_floating_point()]
        assert any(bool((each == MASKED).any() and each.isfinite().all()) for each in constants)
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), Weighted()(*sample), atol=1e-2, rtol=0)


def _with_buffer(_: torch.Tensor) -> torch.Tensor:
    return INFINITE.clamp(min=-1e9)


SHARED: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "buffer, log_softmax": (_with_buffer, lambda y, mask: (y + mask).log_softmax(-1).amax(-1)),
    "infinite buffer, log_softmax": (lambda _: INFINITE, lambda y, mask: (y + mask).log_softmax(-1).amax(-1)),
    "buffer, sigmoid": (_with_buffer, lambda y, mask: (y + mask).sigmoid()),
    "input, comparison": (lambda keep: (1 - keep.float()) * -1e9, lambda y, mask: y * (mask == 0)),
    "input, largest": (lambda keep: (1 - keep.float()) * -1e9, lambda y, mask: (y + mask).amax(-1)),
    "chosen, comparison": (lambda keep: torch.where(keep > 0, 0.0, -1e9), lambda y, mask: y * (mask > -1)),
    "smallest, comparison": (lambda keep: (keep < 1) * torch.finfo(torch.float).min, lambda y, mask: y * (mask > -1)),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("target", quick_first(["xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55"]))
def test_a_mask_that_something_else_reads_is_bounded_for_the_softmax(name: str, target: str) -> None:
    """Attention had 5 dB or an infinite constant, whoever else read its mask."""
    make, read = SHARED[name]

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mask, scores = make(keep), self.first(x) @ x.mT
            weights = (scores + mask).softmax(-1)
            return weights @ x, read(self.second(x) @ x.mT, mask)

    generator, network = torch.Generator().manual_seed(1), Shared().eval()
    data = [
        (torch.randn(SHAPE, generator=generator), torch.randint(0, 2, (1, 1, 8), generator=generator))
        for _ in range(32)
    ]
    for _, keep in data:
        keep[..., 0] = 1

    wanted = torch.stack([network(*each)[0] for each in data])
    exported = export(network, [SHAPE, [1, 1, 8]], input_dtypes=["float32", "int64"]).module()
    for sample in data[:4]:
        torch.testing.assert_close(exported(*sample), network(*sample))
    module = quantized_network(network, create(target), data).module()
    found = torch.stack([module(*each)[0] for each in data])
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 25


@pytest.mark.parametrize("others", [1, 3])
def test_all_softmax_share_one_copy_of_a_mask_that_others_read(others: int) -> None:
    class Layers(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for _ in range(4):
                x = (x @ x.mT + INFINITE).softmax(-1) @ x
            return x, *[(x[..., :8] * n + INFINITE).exp() for n in range(others)]

    program = export(Layers(), [SHAPE])
    found = [each for each in program.constants.values() if torch.equal(each, INFINITE.clamp(min=MASKED))]
    assert len(found) == 1
    assert torch.ops.aten.alias.default not in {node.target for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(*samples()[0]), Layers()(*samples()[0]))


def test_scores_that_something_else_reads_are_masked_by_numbers_of_their_own() -> None:
    """What the softmax reads is finite, and numbers that are no masks are not copied."""

    class Scores(nn.Module):
        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scores = (x @ x.mT).masked_fill(bias > 0, -torch.inf)
            plain = x + bias[..., :1] + torch.full((1, 8, 16), -3.0)
            return scores, scores.softmax(-1), plain, plain.softmax(-1)

    program = export(Scores(), [SHAPE, [1, 8, 8]])
    masked = [node for node in program.graph.nodes if node.target == torch.ops.aten.masked_fill.Scalar]
    assert sorted(node.args[2] for node in masked) == [-torch.inf, MASKED]
    assert [node.target for node in program.graph.nodes].count(torch.ops.aten.add.Tensor) == 2
    inputs = samples()[0][0], torch.rand(1, 8, 8) - 0.5
    torch.testing.assert_close(program.module()(*inputs), Scores()(*inputs))


def test_masked_scores_that_the_model_returns_stay_infinite() -> None:
    class Returned(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = (x @ x.transpose(1, 2)).masked_fill(LATER, -torch.inf)
            return scores, scores.softmax(-1)

    program = export(Returned().eval(), [SHAPE])
    scores, _ = program.module()(*samples()[0])
    assert bool((scores[:, LATER] == -torch.inf).all())
    assert not any(MASKED in node.args for node in program.graph.nodes)


def test_a_temperature_is_no_mask() -> None:
    class Nearest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x[:, :, None] - x[:, None]).abs().sum(-1) * -1e5).softmax(-1)

    for sample in samples():
        torch.testing.assert_close(export(Nearest(), [SHAPE]).module()(*sample), Nearest()(*sample))


BIAS, TEMPERATURE = torch.tensor([-5e4, -2e4, -3e4, -1e4]), torch.tensor(-5e4)
NO_MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "temperature": lambda x: x.abs() * 1e-4 * TEMPERATURE,
    "bias": lambda x: x[..., :4] * 1e4 + BIAS,
    "inverse distances": lambda x: (1 / (x[:, :, None] - x[:, None]).abs().sum(-1)).masked_fill(
        torch.eye(8, dtype=torch.bool), -torch.inf
    ),
    "small gate": lambda x: (
        torch.sigmoid(x.mean(-1, keepdim=True) - 8) * (x @ x.mT).masked_fill(LATER & (x[..., :8] > 0), -1e9)
    ),
    "scores of a full tensor": lambda x: (x @ x.mT) * 1e-5 * torch.full_like(x[..., :8], -2e4),
    "weight of a number": lambda x: torch.add(x @ x.mT, torch.full((8, 8), -1e9).triu(1), alpha=1e-9),
}


@pytest.mark.parametrize("name", NO_MASKS)
def test_numbers_that_are_no_masks_and_scores_that_are_no_numbers_have_their_weights(name: str) -> None:
    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return NO_MASKS[name](x).softmax(-1)

    for sample in samples():
        torch.testing.assert_close(export(Weighted(), [SHAPE]).module()(*sample), Weighted()(*sample))


def _assigned(scores: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
    scores[pad.expand(8, 8)[None]] = -torch.inf
    return scores


def _rows_assigned(scores: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
    scores = scores.transpose(0, 2).contiguous()  # [keys x queries x 1]
    scores[pad] = -torch.inf
    return scores.transpose(0, 2)


def _filled(scores: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
    scores.masked_fill_(pad, -torch.inf)
    return scores


IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "filled": _filled,
    "assigned": _assigned,
    "rows assigned": _rows_assigned,
    "mask filled": lambda scores, pad: scores + torch.zeros_like(pad, dtype=torch.float).masked_fill_(pad, -torch.inf),
    "added": lambda scores, pad: scores.add_(torch.zeros(8).masked_fill(pad, -torch.inf)),
    "in a product": lambda scores, pad: torch.baddbmm(
        torch.zeros(1, 8, 8).masked_fill_(pad, -torch.inf), scores, torch.eye(8)[None], alpha=0.5
    ),
    "joined": lambda scores, pad: scores.masked_fill((pad | (scores > 1e9)).logical_or_(LATER), -torch.inf),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_masks_that_are_made_in_place_are_bounded(name: str) -> None:
    """They stayed infinite: calibrate ended in an exception, or Arm's passes put -256 in their place."""

    class Padded(nn.Module):
        def forward(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            return IN_PLACE[name](x @ x.mT, torch.arange(8) >= length).softmax(-1)

    program = export(Padded(), [SHAPE, [1]], input_dtypes=["float32", "int64"])
    assert any(MASKED in node.args for node in program.graph.nodes)
    assert not any(-torch.inf in node.args for node in program.graph.nodes)
    for length in (3, 8):
        given = (samples()[0][0], torch.tensor([length]))
        torch.testing.assert_close(program.module()(*given), Padded()(*given))


MOVED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mT": lambda y, pad: y.masked_fill(pad[..., None], -torch.inf).mT,
    "T": lambda y, pad: y[0].masked_fill(pad[..., None], -1e9).T,
    "swapaxes": lambda y, pad: y + torch.zeros(8, 8).masked_fill(pad[..., None], -torch.inf).swapaxes(-1, -2),
    "movedim": lambda y, pad: y.masked_fill(pad[..., None], -torch.inf).movedim(1, -1),
    "narrow": lambda y, pad: y.masked_fill(pad, -torch.inf).narrow(1, 2, 3),
    "tile": lambda y, pad: y + torch.where(pad, -torch.inf, 0.0)[None].tile(8, 1),
    "subtracted from": lambda y, pad: y.masked_fill(pad[..., None], -1e9).mT - y[..., :1],
    "broadcast_to": lambda y, pad: y + torch.where(pad, -torch.inf, 0.0).broadcast_to(8, 8),
    "lower rank": lambda y, pad: y - ((torch.ones(3, 8, 8) - (~pad).float()) * 1e9).transpose(1, 2)[:1].mT,
    "lower rank chosen": lambda y, pad: y + torch.where(pad, INFINITE[0, 7], torch.zeros(1, 8, 8))[0].T.mT,
}


@pytest.mark.parametrize("name", MOVED)
def test_masks_are_bounded_however_they_move(name: str) -> None:
    """Behind these operators the numbers stayed, or the export ended in an IndexError."""

    class Padded(nn.Module):
        def forward(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            return MOVED[name](x @ x.mT, torch.arange(8) >= length).softmax(-1)

    program = export(Padded(), [SHAPE, [1]], input_dtypes=["float32", "int64"])
    assert any(MASKED in node.args for node in program.graph.nodes)
    assert not any(argument in (-torch.inf, -1e9, 1e9) for node in program.graph.nodes for argument in node.args)
    for length in (3, 8):
        given = (samples()[0][0], torch.tensor([length]))
        torch.testing.assert_close(program.module()(*given), Padded()(*given))


OF_ONE_NUMBER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "zeros_like": lambda y, pad: torch.where(pad, torch.zeros_like(y) - 9e15, y),
    "negated": lambda y, pad: torch.where(~pad, y, -(9e15 * torch.ones_like(y))),
    "divided": lambda y, pad: torch.where(pad, -torch.ones_like(y) / 0, y),
    "filled": lambda y, pad: torch.where(pad, torch.empty_like(y).fill_(-torch.inf), y),
    "factor": lambda y, pad: y + pad.float() * torch.full_like(y, -1e9),
    "factor in front": lambda y, pad: y + torch.full_like(y, -1e9) * pad.float().expand_as(y),
    "tensor in front": lambda y, pad: y + torch.tensor(-1e9) * pad.float(),
}


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "ethos_u55_128", "cortex_m55", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", OF_ONE_NUMBER)
def test_masks_of_tensors_of_one_number_are_bounded(name: str, target: str) -> None:
    """As graph attention writes them; they had 5 dB of SQNR on Neutron and XNNPACK, or were refused."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            return OF_ONE_NUMBER[name](x @ x.mT, torch.arange(8) >= length).softmax(-1)

    given = [(torch.randn(SHAPE), torch.tensor([1 + index])) for index in range(8)]
    wanted = torch.stack([Padded()(*each) for each in given])
    exported = export(Padded(), [SHAPE, [1]], input_dtypes=["float32", "int64"]).module()
    torch.testing.assert_close(torch.stack([exported(*each) for each in given]), wanted)
    module = quantized_network(Padded(), create(target), given).module()
    found = torch.stack([module(*each) for each in given])
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30


def test_a_padding_of_sequences_that_vary_is_bounded() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor
            found, _ = self.attention(x, x, x, key_padding_mask=x.abs().sum(-1) < 5)
            return found

    network = Padded().eval()
    program = export(network, [SHAPE], (DynamicDimension(dim=1, min=2, max=16),))
    assert any(MASKED in node.args for node in program.graph.nodes)
    for length in (3, 15):
        x = torch.randn(1, length, 16)
        x[:, 1] *= 0.1
        torch.testing.assert_close(program.module()(x), network(x))


def test_numbers_that_are_assigned_where_a_mask_says_are_filled_in() -> None:
    """Other assignments stay: of tensors, at indices, and added ones."""

    class Assigning(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x, y, z = x + 1, x + 2, x + 3
            x[x < 0] = 3
            y[torch.tensor([0]), torch.tensor([1, 2])] = 4
            z = z.index_put((z > 0,), torch.tensor(2.0), accumulate=True)
            return x, y, z

    program = export(Assigning(), [SHAPE])
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.aten.masked_fill.Scalar) == 1
    assert targets.count(torch.ops.aten.index_put.default) == 2
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), Assigning()(*sample))


def test_writes_beside_a_mask_stay() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = (x @ x.transpose(1, 2)).masked_fill(LATER, -torch.inf)
            y = x + 1
            y[:, 0].mul_(3)
            return scores.softmax(-1), y

    for sample in samples():
        torch.testing.assert_close(export(Writing(), [SHAPE]).module()(*sample), Writing()(*sample))


def test_masks_that_are_written_are_no_constants() -> None:
    """Assigned by slices, and one that follows the model's state: what they were before is not what they are."""

    class Assigned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((8, 8), -torch.inf)
            mask[:, :3] = 0
            return (x @ x.transpose(1, 2) + mask[None]).softmax(-1)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position: torch.Tensor
            self.register_buffer("position", torch.full((1,), 3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.position.add_(1)
            mask = (torch.arange(8) < self.position)[None]
            return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)

    for network in (Assigned, Decoder):
        program, ours = export(network().eval(), [SHAPE]).module(), network().eval()
        for sample in samples():
            torch.testing.assert_close(program(*sample), ours(*sample))
