"""Names and shapes of foreign weights as tables: one row per tensor, ours on the left, read in both directions.

A :class:`Rule` lists the foreign tensors that contain one of ours, and how they change. ``{layer}`` and ``{cluster}``
stand for numbers; the attention maps of queries, keys and values are one tensor here (``qkv``) and usually three
elsewhere.

Sources of the names: the state dictionaries of ``transformers`` 5 and the variables of the original TensorFlow, fairseq
and DeBERTa code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from encoderlab.errors import DataError
from encoderlab.interchange.files import check_precision
from encoderlab.nn.architecture import EncoderConfig

# Changes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """How a foreign tensor becomes ours (``read``) and ours becomes foreign (``write``); exact inverses of each other.

    Ours may be several foreign tensors, each changed, concatenated along rows.
    """

    read: Callable[[Tensor, EncoderConfig], Tensor]
    write: Callable[[Tensor, EncoderConfig], Tensor]


SAME = Change(lambda x, _: x, lambda x, _: x)
TRANSPOSED = Change(lambda x, _: x.flatten(1).T, lambda x, _: x.T)  # einsum kernels of old ALBERT files are (D, H, K)
TRANSPOSED_OUT = Change(lambda x, _: x.flatten(0, -2).T, lambda x, _: x.T)  # and (H, K, D)
FLAT = Change(lambda x, _: x.flatten(), lambda x, _: x)
INTERLEAVED = Change(  # DeBERTa v1's in_proj (3 A, D): for each head its rows of queries, then of keys, then of values
    lambda x, config: x.unflatten(0, (config.heads, 3, -1)).transpose(0, 1).flatten(0, 2),
    lambda x, config: x.unflatten(0, (3, config.heads, -1)).transpose(0, 1).flatten(0, 2),
)
HEADS_SPLIT = Change(  # XLNet's (D, H, K)
    lambda x, _: x.flatten(1).T, lambda x, config: x.T.unflatten(1, (config.heads, -1))
)
HEADS_SPLIT_OUT = Change(lambda x, _: x.flatten(1), lambda x, config: x.unflatten(1, (config.heads, -1)))
DEPTHWISE = Change(lambda x, _: x.squeeze(1), lambda x, _: x.unsqueeze(1))  # (D, 1, J)
POINTWISE = Change(lambda x, _: x.squeeze(2), lambda x, _: x.unsqueeze(2))  # (A, D, 1)
COLUMN = Change(lambda x, _: x.squeeze(1), lambda x, _: x.unsqueeze(1))  # (A, 1)
DEPTHWISE_TF = Change(lambda x, _: x.squeeze(2).T, lambda x, _: x.T.unsqueeze(2))  # (J, D, 1)
POINTWISE_TF = Change(lambda x, _: x.squeeze(0).T, lambda x, _: x.T.unsqueeze(0))  # (1, D, A)
SCALAR_VECTOR = Change(lambda x, _: x.reshape(1, -1), lambda x, _: x.reshape(1, 1, -1))  # (1, 1, D)
REVERSED = Change(lambda x, _: x.flip(0), lambda x, _: x.flip(0))


# Rules ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """One of our tensors and the foreign tensors that contain it.

    Args:
        ours: our name, with ``{layer}`` and the like for numbers.
        theirs: the foreign names.
        change: how the foreign tensors become ours, and back.
        ties: foreign names of the same tensor; if a file has them, they must be equal.
        dialect: other foreign names of the tensor, used by some files; :func:`write` writes them on request.
    """

    ours: str
    theirs: tuple[str, ...]
    change: Change = SAME
    ties: tuple[str, ...] = ()
    dialect: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NameTable:
    """All names in one foreign format of one family.

    Args:
        rules: one for each of our tensors.
        prefix: of names, which a bare encoder's names lack.
        renames: patterns of older names, and their replacements.
        ignored: patterns of names that are not weights of the model.
        stacked: tensors that contain all layers along their first axis, read and written as ``NAME/{layer}``.
        pieces: tensors that contain several of ours, with the name and the length of each.
    """

    rules: tuple[Rule, ...]
    prefix: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    pieces: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def bound(self, names: Iterable[str], config: EncoderConfig) -> Iterator[Rule]:
        """The rules for our tensors ``names`` with their numbers filled in; a name without a rule is skipped."""
        patterns = [
            (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(rule.ours))), rule) for rule in self.rules
        ]
        inner = config.sharing.inner if config.sharing else 1
        for name in names:
            for pattern, rule in patterns:
                if (match := pattern.fullmatch(name)) is not None:
                    numbers = {key: int(value) for key, value in match.groupdict().items()}
                    if "layer" in numbers:
                        numbers["group"], numbers["inner"] = divmod(numbers["layer"], inner)
                    fill = [
                        tuple(text.format(**numbers) for text in part)
                        for part in (rule.theirs, rule.ties, rule.dialect)
                    ]
                    yield replace(rule, ours=name, theirs=fill[0], ties=fill[1], dialect=fill[2])
                    break


# Reading and writing --------------------------------------------------------------------------------------------------

RENAMES = ((r"\bLayerNorm\.gamma$", "LayerNorm.weight"), (r"\bLayerNorm\.beta$", "LayerNorm.bias"))
IGNORED = (
    r"\bposition_ids$",
    r"\bembeddings\.token_type_ids$",
    r"(^|/)global_step$",
    r"/adam_[mv]$",
    r"/lamb_[mv]$",
    r"/Adam(_1)?$",
    r"(^|/)(beta[12]_power|AdamWeightDecayOptimizer.*)$",
)


@dataclass(kw_only=True)
class MatchedWeights:
    """The result of :func:`read`: ``weights`` by our names, our ``missing`` names, ``unexpected`` foreign names."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


def read(
    name_table: NameTable,
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    config: EncoderConfig,
    *,
    source: str,
) -> MatchedWeights:
    """Our weights from a file's ``tensors``.

    ``expected`` has the shape of each of ours; ``source`` names the file in errors.

    Raises:
        DataError: a shape does not fit the configuration, tied or repeated tensors differ, or a tensor is quantised.
    """
    rules = list(name_table.bound(expected, config))
    known = {name for rule in rules for name in (*rule.theirs, *rule.ties, *rule.dialect)}
    theirs = normalized(name_table, tensors, known, source=source)
    result, used = MatchedWeights(), set()
    covered = set()
    for rule in rules:
        choices = (rule.theirs, rule.dialect, *((tie,) for tie in rule.ties))
        present = [names for names in choices if names and all(name in theirs for name in names)]
        if not present:
            continue
        covered.add(rule.ours)
        used |= {*rule.theirs, *rule.ties, *rule.dialect}
        for name in (name for names in present for name in names):
            check_precision(name, theirs[name], source)
        first, *others = ([theirs[name] for name in names] for names in present)
        value = _read_one(rule, first, expected[rule.ours], config)
        if value is None:
            shapes = " and ".join(str(tuple(part.shape)) for part in first)
            raise DataError(
                f"{source}: {present[0][0]} has shape {shapes}, which does not fit {tuple(expected[rule.ours])} "
                "in the configuration; the configuration belongs to other weights"
            )
        for names, parts in zip(present[1:], others, strict=True):
            other = _read_one(rule, parts, expected[rule.ours], config)
            if other is None or not torch.equal(other, value):
                raise DataError(
                    f"{source}: {names[0]} differs from {present[0][0]}; the model is not tied, which is not supported"
                )
        result.weights[rule.ours] = value.to(torch.float32).contiguous()
    result.missing = [name for name in expected if name not in covered]
    result.unexpected = sorted(name for name in theirs if name not in used and not is_ignored(name_table, name))
    return result


def is_ignored(name_table: NameTable, name: str) -> bool:
    """Whether a foreign name is not a weight of the model."""
    return any(re.search(pattern, name) for pattern in (*IGNORED, *name_table.ignored))


def _read_one(rule: Rule, parts: Sequence[Tensor], shape: torch.Size, config: EncoderConfig) -> Tensor | None:
    """Our tensor of ``shape`` from the foreign ``parts``; None if they do not fit."""
    try:
        changed = [rule.change.read(part, config) for part in parts]
        value = changed[0] if len(changed) == 1 else torch.cat(changed)
    except (RuntimeError, IndexError):  # a part has another number of axes
        return None
    return value if value.shape == shape else None


def write(
    name_table: NameTable,
    weights: Mapping[str, Tensor],
    config: EncoderConfig,
    *,
    dialects: bool = False,
    ties: bool = False,
) -> dict[str, Tensor]:
    """The foreign tensors for our ``weights``; with ``dialects`` and ``ties`` also under their other names.

    Raises:
        DataError: a tensor without a place in the format, or two tensors with the same place.
    """
    tensors: dict[str, Tensor] = {}
    owners: dict[str, str] = {}
    for rule in name_table.bound(weights, config):
        taken = [name for name in rule.theirs if name in owners]
        if taken:
            raise DataError(f"the format has only one place, {taken[0]}, for {owners[taken[0]]} and {rule.ours}")
        owners |= dict.fromkeys(rule.theirs, rule.ours)
        choices = [
            rule.theirs,
            *([rule.dialect] if dialects and rule.dialect else []),
            *((tie,) for tie in rule.ties if ties),
        ]
        for names in choices:
            parts = [rule.change.write(part, config) for part in weights[rule.ours].chunk(len(names))]
            # A tensor with two names is copied, because tensors in a file of weights share no memory.
            copies = [part.clone() if names is not rule.theirs else part for part in parts]
            tensors |= {name: part.contiguous() for name, part in zip(names, copies, strict=True)}
    lost = sorted(set(weights) - set(owners.values()))
    if lost:
        raise DataError(f"the format has no place for {', '.join(lost[:6])}{', ...' if len(lost) > 6 else ''}")
    return _join(name_table, tensors)


def normalized(
    name_table: NameTable, tensors: Mapping[str, Tensor], known: set[str], *, source: str
) -> dict[str, Tensor]:
    """``tensors`` under the names in the table's rules: old names replaced, the encoder's prefix added or removed.

    Raises:
        DataError: two different tensors get the same name, for example from two encoders in one file.
    """
    result: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for key, tensor in _split(name_table, tensors, known):
        name = key.removeprefix("module.").removeprefix("_orig_mod.")
        for pattern, replacement in (*RENAMES, *name_table.renames):
            name = re.sub(pattern, replacement, name)
        for candidate in (name, name_table.prefix + name, name.removeprefix(name_table.prefix)):
            if candidate in known:
                name = candidate
                break
        if name in result and not torch.equal(result[name], tensor):
            raise DataError(f"{source}: {key} differs from {origin[name]}, and both are {name}; delete one of them")
        result[name], origin[name] = tensor, key
    return result


def _split(name_table: NameTable, tensors: Mapping[str, Tensor], known: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Split tensors that contain several of ours."""
    for name, tensor in tensors.items():
        if name in name_table.stacked and f"{name}/0" in known:
            yield from ((f"{name}/{layer}", part) for layer, part in enumerate(tensor))
        elif name in name_table.pieces and list(tensor.shape) == [sum(size for _, size in name_table.pieces[name])]:
            parts = tensor.split([size for _, size in name_table.pieces[name]])
            yield from ((part, value) for (part, _), value in zip(name_table.pieces[name], parts, strict=True))
        else:
            yield name, tensor


def _join(name_table: NameTable, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`_split`."""
    for name in name_table.stacked:
        layers = [key for key in tensors if re.fullmatch(re.escape(name) + r"/\d+", key)]
        if layers:
            tensors[name] = torch.stack([tensors.pop(f"{name}/{layer}") for layer in range(len(layers))])
    for name, pieces in name_table.pieces.items():
        if all(piece in tensors for piece, _ in pieces):
            tensors[name] = torch.cat([tensors.pop(piece) for piece, _ in pieces])
    return tensors
