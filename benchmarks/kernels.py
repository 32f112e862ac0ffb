"""Times every kernel against torch's operations and its plain version, and a BERT layer against its matrix products.

    python benchmarks/kernels.py [--threads 2] [--rounds 9] [--bf16] [--width 256]

Contenders run in turns, A B C A B C; it prints medians in milliseconds and the ratio to the first one, forward plus
backward, 32 x 128 tokens, dropout 0.1. "products" is the time of the matrix products alone, so its ratio to "kernels"
is the share of a layer's time that they take. One thread is timed by its processor time, which other processes on the
machine disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.nn import kernels
from encoderlab.nn.kernels import plain
from encoderlab.nn.noise import Noise

ROWS, LENGTH, HEAD, RATE = 32, 128, 64, 0.1
SEEDS = Noise(0, 0, torch.arange(ROWS)).seeds


def compare(name: str, contenders: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Prints one line: the median time of each contender, run in turns, and its ratio to the first."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {key: [] for key in contenders}
    for turn in range(rounds + 1):
        for key, run in contenders.items():
            start = clock()
            run()
            if turn:
                times[key].append(clock() - start)
    medians = {key: statistics.median(values) * 1e3 for key, values in times.items()}
    first = next(iter(medians.values()))
    shown = "  ".join(f"{key} {value:.2f} ms ({first / value:.2f}x)" for key, value in medians.items())
    print(f"{name:<31}{shown}", flush=True)


def training(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    """One forward and backward pass of ``function`` with gradients for all inputs."""
    gradient = torch.randn_like(function(*inputs))

    def run() -> None:
        for x in inputs:
            x.grad = None
        function(*inputs).backward(gradient)

    return run


def leaves(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def operations(width: int, dtype: torch.dtype, rounds: int) -> None:
    """Each kernel on its own."""
    heads, inner = width // HEAD, 4 * width
    (x, r), (w, b) = leaves(dtype, *[(ROWS, LENGTH, width)] * 2), leaves(dtype, (width,), (width,))
    contenders = {
        "torch": training(lambda x: F.dropout(x, RATE), x),
        "plain": training(lambda x: plain.dropout(x, RATE, SEEDS, 0), x),
        "kernel": training(lambda x: kernels.dropout(x, RATE, SEEDS, 0), x),
    }
    compare("dropout", contenders, rounds)
    contenders = {
        "torch": training(lambda x, r, w, b: F.layer_norm(r + F.dropout(x, RATE), (width,), w, b), x, r, w, b),
        "torch without dropout": training(lambda x, r, w, b: F.layer_norm(r + x, (width,), w, b), x, r, w, b),
        "kernel": training(lambda x, r, w, b: kernels.dropout_add_norm(x, r, w, b, 1e-12, RATE, SEEDS, 0), x, r, w, b),
    }
    compare("dropout + add + LayerNorm", contenders, rounds)
    (up, bias, down) = leaves(dtype, (inner, width), (inner,), (width, inner))
    drop: dict[str, Any] = {"p": RATE, "seeds": SEEDS, "site": 0}
    contenders = {
        "torch": training(
            lambda x, u, c, d: F.linear(F.dropout(F.gelu(F.linear(x, u, c)), RATE), d), x, up, bias, down
        ),
        "kernel": training(lambda x, u, c, d: kernels.feed_forward(x, u, c, d, **drop), x, up, bias, down),
    }
    compare("feed-forward with dropout", contenders, rounds)
    qkv = leaves(dtype, *[(ROWS, heads, LENGTH, HEAD)] * 3)
    scale = HEAD**-0.5
    contenders = {
        "torch": training(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=RATE), *qkv),
        "torch without dropout": training(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *qkv),
        "kernel": training(lambda q, k, v: kernels.attend(q, k, v, scale=scale, p=RATE, seeds=SEEDS), *qkv),
    }
    compare("attention", contenders, rounds)
    rows = leaves(dtype, *[(2 * LENGTH - 1, heads, HEAD)] * 2)

    def as_bias(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        bias = plain.relative_bias(q, k, kernels.Relative(query_rows=a, key_rows=b), scale)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=RATE)

    def as_rows(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return kernels.attend(q, k, v, scale=scale, p=RATE, seeds=SEEDS, relative=kernels.Relative(a, b))

    contenders = {"torch, skewed bias": training(as_bias, *qkv, *rows), "kernel": training(as_rows, *qkv, *rows)}
    compare("disentangled attention", contenders, rounds)
    (x, logits, weight) = leaves(dtype, (ROWS, LENGTH, width), (ROWS, LENGTH, heads * 9), (width, 9))
    contenders = {
        "plain": training(lambda x, k: plain.dynamic_convolution(x, k, heads), x, logits),
        "kernel": training(lambda x, k: kernels.dynamic_convolution(x, k, heads), x, logits),
    }
    compare("dynamic convolution, 9 taps", contenders, rounds)
    contenders = {
        "plain": training(lambda x, w: plain.depthwise(x, w), x, weight),
        "kernel": training(lambda x, w: kernels.depthwise(x, w), x, weight),
    }
    compare("depthwise convolution, 9 taps", contenders, rounds)


def head(width: int, dtype: torch.dtype, rounds: int, vocabulary: int = 30522, chosen: int = 614) -> None:
    """The vocabulary product with its loss, and the comparison with a teacher, on 15% of the tokens."""
    labels = torch.randint(vocabulary, (chosen,))
    x, w, b = leaves(dtype, (chosen, width), (vocabulary, width), (vocabulary,))

    def run(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def step() -> None:
            for leaf in (x, w, b):
                leaf.grad = None
            loss().backward()

        return step

    contenders = {
        "torch": run(lambda: F.cross_entropy(F.linear(x, w, b).float(), labels, reduction="sum")),
        "kernel": run(lambda: kernels.linear_cross_entropy(x, w, b, labels)[0]),
    }
    compare("vocabulary head and loss", contenders, max(3, rounds // 2))
    (logits,), targets = leaves(dtype, (chosen, vocabulary)), torch.randn(chosen, vocabulary, dtype=dtype)
    contenders = {
        "torch": training(lambda x: plain.divergence(x, targets, 2.0)[0], logits),
        "kernel": training(lambda x: kernels.divergence(x, targets, 2.0)[0], logits),
    }
    compare("divergence from a teacher", contenders, max(3, rounds // 2))


def layer(width: int, dtype: torch.dtype, rounds: int) -> None:
    """One BERT layer."""
    heads, tokens, scale = width // HEAD, ROWS * LENGTH, HEAD**-0.5
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    qkv, out, up, down = [p.detach().mul_(0.05).requires_grad_() for p in leaves(dtype, *shapes)]
    qkv_bias, up_bias, *small = leaves(dtype, (3 * width,), (4 * width,), *[(width,)] * 6)
    out_bias, down_bias, w1, b1, w2, b2 = small
    (x,) = leaves(dtype, (ROWS, LENGTH, width))
    parameters = [qkv, out, up, down, qkv_bias, up_bias, *small]

    def of_torch(x: Tensor, *_: Tensor, rate: float = RATE) -> Tensor:
        parts = F.linear(x, qkv, qkv_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, HEAD)).transpose(1, 2) for part in parts)
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(1, 2).flatten(2)
        x = F.layer_norm(x + F.dropout(F.linear(a, out, out_bias), rate), (width,), w1, b1)
        change = F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
        return F.layer_norm(x + F.dropout(change, rate), (width,), w2, b2)

    def of_kernels(x: Tensor, *_: Tensor) -> Tensor:
        a = kernels.attend_packed(F.linear(x, qkv, qkv_bias), heads, scale=scale, p=RATE, seeds=SEEDS)
        x = kernels.dropout_add_norm(F.linear(a, out), x, w1, b1, 1e-12, RATE, SEEDS, 1, x_bias=out_bias)
        change = kernels.feed_forward(x, up, up_bias, down)
        return kernels.dropout_add_norm(change, x, w2, b2, 1e-12, RATE, SEEDS, 2, x_bias=down_bias)

    states, inner = torch.randn(tokens, width, dtype=dtype), torch.randn(tokens, 4 * width, dtype=dtype)
    pairs = torch.randn(ROWS * heads, LENGTH, HEAD, dtype=dtype)
    scores = torch.randn(ROWS * heads, LENGTH, LENGTH, dtype=dtype)

    @torch.no_grad()
    def products() -> None:
        for weight, given in ((qkv, states), (out, states), (up, states), (down, inner)):
            made = given @ weight.T
            made @ weight, made.T @ given
        for _ in range(2):
            torch.bmm(pairs, pairs.transpose(1, 2)), torch.bmm(scores, pairs)
        torch.bmm(scores.transpose(1, 2), pairs), torch.bmm(scores.transpose(1, 2), pairs)

    contenders = {
        "torch": training(of_torch, x, *parameters),
        "torch without dropout": training(lambda x, *p: of_torch(x, *p, rate=0.0), x, *parameters),
        "kernels": training(of_kernels, x, *parameters),
        "products": products,
    }
    compare(f"BERT layer of width {width}", contenders, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels.keep_memory()
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    operations(args.width, dtype, args.rounds)
    head(args.width, dtype, args.rounds)
    layer(args.width, dtype, args.rounds)


if __name__ == "__main__":
    main()
