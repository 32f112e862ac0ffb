"""Adaptive softmax against the definition, and the heads' shapes."""

from __future__ import annotations

import pytest
import torch

from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.models.transformer_xl import transformer_xl
from encoderlab.nn.embeddings import Embeddings
from encoderlab.nn.heads import AdaptiveLMHead, Span, SpanHead, Tagging, TaggingHead
from encoderlab.nn.noise import Noise


def adaptive_model(divisor: int, tied: str, cutoffs: tuple[int, ...] = (5, 9), embed_width: int | None = None) -> Model:
    config = transformer_xl(
        layers=1,
        width=8,
        heads=2,
        head_width=4,
        ff_width=8,
        vocab=20,
        cutoffs=cutoffs,
        divisor=divisor,
        tied_projections=tied,
    )
    model = Model(resized(config, embed_width=embed_width)).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("divisor", [1, 2])
@pytest.mark.parametrize("tied", ["all", "all_but_first", "none"])
def test_adaptive_softmax_is_its_definition(divisor: int, tied: str) -> None:
    """p(w) = p(cluster) p(w | cluster), and sums to one."""
    model = adaptive_model(divisor, tied)
    head, tables = model.lm, model.encoder.embeddings.clusters
    assert isinstance(head, AdaptiveLMHead)
    x = torch.randn(6, 8, dtype=torch.float64)
    targets = torch.tensor([0, 4, 5, 8, 9, 19])
    losses = head.losses(x, targets, model.encoder.embeddings)
    for row, target in enumerate(targets.tolist()):

        def projected(cluster: int, row: int = row) -> torch.Tensor:
            if divisor == 1:
                return x[row]
            owned = {"all": [], "all_but_first": [0], "none": [0, 1, 2]}[tied]
            matrix = head.maps[str(cluster)] if cluster in owned else tables.maps[cluster]
            return x[row] @ matrix

        def table(cluster: int) -> torch.Tensor:
            return (
                tables.tables[cluster] if divisor > 1 else tables.tables[0][slice(*[(0, 5), (5, 9), (9, 20)][cluster])]
            )

        first = torch.cat(
            [table(0) @ projected(0) + head.biases[0], head.cluster_weight @ projected(0) + head.cluster_bias]
        )
        if target < 5:
            want = -first.log_softmax(0)[target]
        else:
            cluster, start = (1, 5) if target < 9 else (2, 9)
            tail = table(cluster) @ projected(cluster) + head.biases[cluster]
            want = -first.log_softmax(0)[5 + cluster - 1] - tail.log_softmax(0)[target - start]
        torch.testing.assert_close(losses[row], want)
    probabilities = log_probabilities(head, x, model.encoder.embeddings).exp()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(6, dtype=torch.float64))


def log_probabilities(head: AdaptiveLMHead, x: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
    """Of every word (S, V), out of its losses."""
    rows, vocab = len(x), head.clusters[-1][1]
    every = torch.arange(vocab).repeat(rows)
    return -head.losses(x.repeat_interleave(vocab, 0), every, embeddings).view(rows, vocab)


@pytest.mark.parametrize(("tied", "reads"), [("all", [1, 1, 1]), ("all_but_first", [0, 1, 1]), ("none", [0, 0, 0])])
def test_clusters_of_one_table_read_the_map_they_are_tied_to(tied: str, reads: list[int]) -> None:
    """With divisor 1 there is one map of the input; clusters that are not tied to it have one each of their own."""
    model = adaptive_model(1, tied, embed_width=6)
    head, embeddings = model.lm, model.encoder.embeddings
    x = torch.randn(3, 8, dtype=torch.float64)
    before = log_probabilities(head, x, embeddings)
    embeddings.clusters.maps[0].data += 1
    after = log_probabilities(head, x, embeddings)
    shares = [
        (log[:, a:b] - log[:, a:b].logsumexp(1, keepdim=True)) for log in (before, after) for a, b in head.clusters
    ]
    changed = [int((one - two).abs().max() > 1e-9) for one, two in zip(shares[:3], shares[3:], strict=True)]
    assert changed == reads
    assert list(head.maps) == [str(cluster) for cluster, read in enumerate(reads) if not read]
    if tied == "none":
        (start, stop), before = head.clusters[1], log_probabilities(head, x, embeddings)
        head.maps["1"].data += 1
        moved = (log_probabilities(head, x, embeddings) - before).abs().amax(0) > 1e-9
        assert moved.tolist() == [start <= word < stop for word in range(20)]


def test_adaptive_softmax_without_tails_is_plain() -> None:
    model = adaptive_model(1, "all", cutoffs=())
    x = torch.randn(3, 8, dtype=torch.float64)
    logits = x @ model.encoder.embeddings.clusters.tables[0].T + model.lm.biases[0]
    want = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2, 3]), reduction="none")
    torch.testing.assert_close(model.lm.losses(x, torch.tensor([1, 2, 3]), model.encoder.embeddings), want)


def test_clusters_without_width_are_refused() -> None:
    cutoffs = (5, 9, 12)
    tables = adaptive_model(2, "all", cutoffs).encoder.embeddings.clusters.tables
    assert [table.shape[1] for table in tables] == [8, 4, 2, 1]
    with pytest.raises(ConfigError, match=r"divisor 3 gives .* of 4 clusters width 0 .*; set .*divisor to at most 2$"):
        adaptive_model(3, "all", cutoffs)


def test_adaptive_losses_have_gradients() -> None:
    model = adaptive_model(2, "all_but_first")
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1, 6, 12, 19])
    assert torch.autograd.gradcheck(lambda x: model.lm.losses(x, targets, model.encoder.embeddings), x)


@pytest.mark.parametrize("variant", ["independent", "conditional", "beam"])
def test_span_heads_never_choose_a_forbidden_place(variant: str) -> None:
    torch.manual_seed(0)
    head = SpanHead(Span(variant=variant), 8, 1e-12)
    x = torch.randn(2, 5, 8)
    allowed = torch.tensor([[True, False, True, True, False]] * 2)
    starts = head.start_logits(x, allowed)
    ends = head.end_logits(x, allowed, torch.tensor([[0, 2], [3, 0]]))
    assert starts.shape == (2, 5) and ends.shape == (2, 2, 5)
    if variant != "independent":
        assert starts[:, [1, 4]].max() < -500 and ends[..., [1, 4]].max() < -500
        assert head.answer_logits(x, x[:, 0], starts).shape == (2,)


def test_deberta_drops_what_its_tags_are_made_of() -> None:
    """Behind the dense map and its GELU, as in microsoft/DeBERTa's ``ner.py``."""
    head = TaggingHead(Tagging(labels=64, dropout=0.5, dense=True), 64)
    with torch.no_grad():
        head.dense.bias.fill_(50.0)
        head.out.weight.copy_(torch.eye(64))
        head.out.bias.zero_()
        found = head(torch.randn(20, 64), Noise(0, 0, torch.arange(20)).seeds)
    assert 0.4 < float((found == 0).float().mean()) < 0.6 and float(found[found != 0].min()) > 50
