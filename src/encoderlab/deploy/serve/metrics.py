"""Prometheus metrics of a server, under the names of text-embeddings-inference, and some of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from encoderlab.deploy.serve.engine import ComputeThread, PendingRequest
from encoderlab.deploy.serve.queue import Entry

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Counts(Collector):
    """Counts by the value of a label, under exactly this name; names of the library's counters end in ``_total``."""

    def __init__(self, name: str, documentation: str, label: str, registry: CollectorRegistry) -> None:
        self.name, self.documentation, self.label = name, documentation, label
        self.counts: dict[str, int] = {}
        registry.register(self)

    def add(self, value: str) -> None:
        self.counts[value] = self.counts.get(value, 0) + 1

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self.name, self.documentation, "unknown")
        for value, count in self.counts.items():
            metric.add_sample(self.name, {self.label: value}, count)
        yield metric


class Metrics:
    """Counters of one server."""

    def __init__(self, engine: ComputeThread) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counts("te_request_count", "Requests.", "method", **own)
        self.success = Counts("te_request_success", "Requests answered.", "method", **own)
        self.failure = Counts("te_request_failure", "Requests that ended with an error.", "err", **own)
        self.duration = Histogram("te_request_duration", "Seconds of a request.", buckets=SECONDS, **own)
        self.tokenization = Histogram("te_request_tokenization_duration", "Seconds.", buckets=SECONDS, **own)
        self.queueing = Histogram("te_request_queue_duration", "Seconds in the queue.", buckets=SECONDS, **own)
        self.inference = Histogram("te_request_inference_duration", "Seconds.", buckets=SECONDS, **own)
        self.length = Histogram("te_request_input_length", "Tokens of a request.", buckets=SIZES, **own)
        self.batch_size = Histogram("te_batch_next_size", "Sequences of a batch.", buckets=SIZES, **own)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens of a batch.", buckets=SIZES, **own)
        shares = tuple(i / 10 for i in range(11))
        self.padding = Histogram("encoderlab_padding_ratio", "Share of padding.", buckets=shares, **own)
        queued = Gauge("te_queue_size", "Sequences in the queue.", **own)
        queued.set_function(lambda: len(engine.queue))
        waiting = Gauge("encoderlab_queue_tokens", "Tokens in the queue.", **own)
        waiting.set_function(lambda: engine.waiting)
        engine.batch_done = self.batch

    def batch(self, entries: Sequence[Entry]) -> None:
        """Count a batch that was computed."""
        tokens, longest = sum(entry.tokens for entry in entries), max(entry.tokens for entry in entries)
        self.batch_size.observe(len(entries))
        self.batch_tokens.observe(tokens)
        self.padding.observe(1 - tokens / (longest * len(entries)))

    def computed(self, job: PendingRequest, *, tokenizing: float, total: float) -> None:
        """Count a request that was computed; times are in seconds."""
        self.duration.observe(total)
        self.tokenization.observe(tokenizing)
        self.queueing.observe(max(job.started - job.arrived, 0.0))
        self.inference.observe(max(job.ended - job.started, 0.0))
        self.length.observe(sum(entry.tokens for entry in job.entries))

    def text(self) -> bytes:
        return generate_latest(self.registry)
