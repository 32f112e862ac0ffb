"""``encoderlab serve``: serve a model over HTTP."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.commands.precision import Precision
from encoderlab.commands.settings import Amount, AmountOrZero, Count
from encoderlab.deploy.serve.engine import ComputeThread, lanes
from encoderlab.errors import ConfigError, MissingDependency


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a model is served.

    Parameters
    ----------
    host
        Address to listen on; an address that others can reach needs --key-file or --no-key.
    port
        Port to listen on; 0 for any free port.
    name
        Name of the model for clients. Default: the folder's name.
    engine
        What computes the model: our kernels (own), or the graph of an exported folder in ONNX
        Runtime, in fp32 (onnx) or int8.
    precision
        Arithmetic of the matrix products in our kernels: fp32, or int8 (8 bits; two to three times as
        fast on processors with VNNI). To see what int8 costs: encoderlab predict or encode with --check.
    beside
        Second model, under /beside; the page shows both side by side.
    key_file
        File with one key per line; requests must send one of them.
    no_key
        Answer requests without a key, also from other machines.
    allow_host
        Host name that clients may use for this server (repeatable); "*" for any.
    cors
        Origin whose web pages may send requests, such as https://example.org.
    metrics
        Whether /metrics needs a key.
    max_batch_tokens
        Tokens per batch, padding included.
    max_wait
        Seconds; requests that would wait longer are refused (429, with Retry-After).
    max_texts
        Largest number of texts in a request.
    max_body
        Largest body of a request, in bytes.
    deadline
        Seconds after which a request fails.
    drain
        Seconds to wait for accepted requests after a signal.
    drain_delay
        Seconds to keep accepting requests after a signal, while /health reports failure.
    accept_ids
        Accept token ids of the model's vocabulary instead of texts.
    rate
        Requests per second of each key, or of each address if there are no keys; more are refused. Each
        of several workers counts its own.
    workers
        Processes that share the port, each with its share of the cores and its own model.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    name: str | None = None
    engine: Literal["own", "onnx", "int8"] = "own"
    precision: Precision = "fp32"
    beside: Path | None = None
    key_file: Path | None = None
    no_key: bool = False
    allow_host: list[str] | None = None
    cors: str | None = None
    metrics: Literal["open", "key"] = "open"
    max_batch_tokens: Count = 4096
    max_wait: Amount = 10.0
    max_texts: Count = 1024
    max_body: Count = 2_000_000
    deadline: Amount = 60.0
    drain: AmountOrZero = 25.0
    drain_delay: AmountOrZero = 0.0
    accept_ids: bool = False
    rate: Amount | None = None
    workers: Count = 1


OPTIONS = ServeOptions()


def serve(model: Path, /, *, options: ServeOptions = OPTIONS) -> dict[str, Any]:
    """Serve a model over HTTP.

    Speaks the protocols of text-embeddings-inference, OpenAI (embeddings), Cohere and
    Jina (rerank), and of Hugging Face's tasks at `POST /`. Open its address in a browser for a page
    to try the model. Only this machine can connect unless --host is given, which needs
    keys. After a signal, the server ends when all accepted requests are
    answered.

    Example: encoderlab serve runs/reviews --port 8080

    Parameters
    ----------
    model
        Folder of a model, a run or an export, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    """
    for package in ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "serve", "serving")
    if options.precision == "int8" and options.engine in ("onnx", "int8"):
        raise ConfigError(
            f"--precision int8 is for our kernels, not for --engine {options.engine}; leave one of them out"
        )
    own = options.host in ("127.0.0.1", "localhost", "::1")
    if not own and options.key_file is None and not options.no_key:
        raise ConfigError(
            f"--host {options.host} can be reached by other machines; give --key-file FILE, or --no-key for open access"
        )
    if options.key_file is not None and options.no_key:
        raise ConfigError("--no-key leaves out the keys of --key-file; leave one of them out")
    if options.metrics == "key" and options.key_file is None:
        raise ConfigError("--metrics key asks for one of the keys of --key-file; give --key-file too")
    for name in options.allow_host or ():
        if not re.fullmatch(r"[^\s/:\[\]]+|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*", name):
            raise ConfigError(
                f"--allow-host {name}: expected a name or an address, without a port, such as models.example.org"
            )
    if options.cors is not None and not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^\s/A-Z]+", options.cors):
        raise ConfigError(
            f"--cors {options.cors}: expected an origin as browsers send it, without a path, such as "
            "https://example.org"
        )
    if options.workers > 1:
        from encoderlab.deploy.serve.workers import supervise

        given = {"model": model, "options": options}
        place = supervise(answer, given, options.workers, host=options.host, port=options.port, say=terminal.note)
    else:
        place = answer(model, options, port=options.port)
    return {"model": model, "address": place}


def answer(model: Path, options: ServeOptions, *, port: int, shared: bool = False) -> str:
    """Serve in this process until a signal; return the address. ``shared``: other processes listen on the port too."""
    from encoderlab.deploy.serve import page
    from encoderlab.deploy.serve.app import BESIDE, Server
    from encoderlab.deploy.serve.graphs import GraphService
    from encoderlab.deploy.serve.http import PROBES, Guard, Limits
    from encoderlab.deploy.serve.run import Address, read_keys, run
    from encoderlab.deploy.serve.service import Service

    keys = () if options.key_file is None else read_keys(options.key_file)
    address = Address(host=options.host, port=port, delay=options.drain_delay, drain=options.drain, shared=shared)
    listener = address.listen()
    service: Service
    if options.engine == "own":
        service = Service.of(model, name=options.name, precision=options.precision)
    else:
        service = GraphService.open(model, options.engine, name=options.name)
    other = None if options.beside is None else Service.of(options.beside, precision=options.precision)
    compute = lanes({"": service.compute, **({} if other is None else {BESIDE: other.compute})})
    computing = ComputeThread(compute, budget=options.max_batch_tokens, max_wait=options.max_wait)
    hosts = ("localhost", "127.0.0.1", "::1", options.host, *(options.allow_host or ()))
    free = PROBES if options.metrics == "key" else (*PROBES, "/metrics")
    guard = Guard(keys=keys, hosts=hosts, open=free, pages=tuple(page.FILES), cors=options.cors, rate=options.rate)

    def served(model: Service, **more: Any) -> Server:
        limits = Limits(
            body=options.max_body, texts=options.max_texts, characters=250 * model.longest, deadline=options.deadline
        )
        return Server(model, computing, limits=limits, accept_ids=options.accept_ids, **more)

    second = None if other is None else served(other, lane=BESIDE)
    server = served(service, guard=guard, beside=second)
    place = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{listener.getsockname()[1]}"
    what = service.form or ("vectors and masks" if service.fills_masks else "vectors")
    if not shared:
        terminal.note(f"{service.name} ({service.model.config.family}, {what}) at {place}; Ctrl-C ends it")
    run(server, address, listener)
    return place
