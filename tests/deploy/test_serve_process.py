"""The process of a server: overload, time limits, faults, keys, folders, files and signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)


from encoderlab.cli import main  # noqa: E402
from encoderlab.commands.serve import ServeOptions, answer  # noqa: E402
from encoderlab.deploy.sentence_transformers import pooling_of  # noqa: E402
from encoderlab.deploy.serve import run as process  # noqa: E402
from encoderlab.deploy.serve import workers  # noqa: E402
from encoderlab.deploy.serve.app import Server  # noqa: E402
from encoderlab.deploy.serve.engine import ComputeThread  # noqa: E402
from encoderlab.deploy.serve.http import Limits  # noqa: E402
from encoderlab.deploy.serve.run import Address, read_keys  # noqa: E402
from encoderlab.deploy.serve.service import Service  # noqa: E402
from encoderlab.errors import ConfigError, DataError  # noqa: E402
from encoderlab.inference import encode  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.interchange.load import load  # noqa: E402
from tests.deploy.served import KEY, TEXTS, Asked, serving, unit  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402


def test_an_overload_is_refused_at_once_and_loses_nothing() -> None:
    with serving(tiny("bert-tiny").eval(), slow=0.2, max_wait=0.02) as asked:
        found: list[tuple[int, float, Any]] = []

        def ask() -> None:
            began = time.monotonic()
            status, _, headers = asked("/embed", {"inputs": ["one two three"] * 5})
            found.append((status, time.monotonic() - began, headers))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {status for status, _, _ in found} == {200, 429}
        assert all(int(headers["retry-after"]) >= 1 for status, _, headers in found if status == 429)
        assert asked("/embed", {"inputs": "a"})[0] == 200
        assert asked.server.engine.waiting == 0 and not asked.server.engine._jobs


def test_what_nobody_waits_for_is_not_computed() -> None:
    with serving(tiny("bert-tiny").eval(), slow=0.3, limits=Limits(deadline=0.8)) as asked:
        body = json.dumps({"inputs": ["a b c d"] * 200}).encode()
        head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", asked.port)) as plain:
            plain.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.2)
        status, told, _ = asked("/embed", json.loads(body))
        assert status == 504 and "not answered within 0.8 seconds" in told["error"]
        for _ in range(50):
            if not asked.server.engine._jobs:
                break
            time.sleep(0.1)
        assert not asked.server.engine._jobs and asked.server.engine.waiting == 0


def test_the_deadline_passes_while_a_batch_is_computed() -> None:
    with serving(tiny("bert-tiny").eval(), slow=3.0, limits=Limits(deadline=0.3)) as asked:
        status, told, _ = asked("/embed", {"inputs": "a"})
        assert status == 504 and "not answered within 0.3 seconds" in told["error"]
        assert asked.server.engine._jobs  # it is still being computed


def test_a_fault_of_the_model_is_an_error_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        whole = asked.server.engine.compute

        def broken(kind: str, works: Any) -> Any:
            raise RuntimeError("secret of the server")

        asked.server.engine.compute = broken
        status, told, _ = asked("/embed", {"inputs": "a"})
        assert (status, told["error_type"]) == (424, "Backend") and "secret" not in told["error"]
        asked.server.engine.compute = whole
        assert asked("/embed", {"inputs": "a"})[0] == 200


def test_heads_of_requests_that_do_not_come(pretrained: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEADER_SECONDS", 0.3)
    began = time.monotonic()
    assert pretrained.raw(b"GET /health HTTP/1.1\r\nHost: loc") == b""
    assert pretrained.raw(b"") == b"" and time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("head", "rest"),
    [(b"", b"\r\n"), (b"Content-Length: 9\r\n", b"a"), (b"Transfer-Encoding: chunked\r\n", b"1\r\n")],
)
def test_what_is_no_request_keeps_no_connection(
    pretrained: Asked, monkeypatch: pytest.MonkeyPatch, head: bytes, rest: bytes
) -> None:
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", pretrained.port), timeout=5) as plain:
        plain.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        assert plain.recv(65536).startswith(b"HTTP/1.1 200")
        plain.sendall(rest)
        assert plain.recv(65536) == b""


def test_bodies_that_do_not_come_in_time() -> None:
    with serving(tiny("bert-tiny").eval(), limits=Limits(body_seconds=0.3)) as asked:
        head = (
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        )
        said = asked.raw(head, b'{"inp')
        assert said.startswith(b"HTTP/1.1 408") and b"took longer than 0.3 seconds" in said
        assert b"connection: close" in said.lower()
        assert asked("/embed", {"inputs": "a"})[0] == 200


def test_every_answer_has_a_random_id(pretrained: Asked) -> None:
    ids = {pretrained("/embed", {"inputs": "a"})[2]["x-request-id"] for _ in range(5)}
    assert len(ids) == 5 and all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_an_offer_of_another_protocol_is_ignored(pretrained: Asked) -> None:
    """Java's client offers HTTP/2 with every request; the body is this protocol's all the same."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\n" + offer + b"Content-Type: application/json\r\n"
    sized, chunked = b"Content-Length: 17\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
    for parts in (
        (head + sized + b'{"inputs": "cat"}',),
        (head[:90], head[90:] + sized + b'{"inp', b'uts": "cat"}'),
        (head + chunked + b'5\r\n{"inp\r\n', b'c\r\nuts": "cat"}\r\n0\r\n\r\n'),
        (2 * (head + sized + b'{"inputs": "cat"}'),),
        (b"GET /info HTTP/1.0\r\nHost: localhost\r\n" + offer + b"\r\n",),
    ):
        assert pretrained.raw(*parts, wait=0.02).startswith(b"HTTP/1.1 200"), parts
    assert pretrained.raw(b"CONNECT / HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n").startswith(b"HTTP/1.1 4")
    assert pretrained.raw(head + b"X: " + b"a" * 70_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")


def test_long_headers_are_refused_and_long_bodies_are_not() -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        endless = asked.raw(b"GET /info HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"a" * 30_000] * 10)
        assert endless.startswith(b"HTTP/1.1 431")
        almost, more = (b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * size for size in (65_000, 65_600))
        assert asked.raw(almost + b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert asked.raw(more + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
        body = json.dumps({"inputs": ["the cat sat " * 800] * 10}).encode()
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        assert asked.raw(whole).startswith(b"HTTP/1.1 200") and len(body) > 90_000
        connection = http.client.HTTPConnection("127.0.0.1", asked.port, timeout=60)
        for _ in range(30):  # the room is that of a request, not of a connection
            connection.request("GET", "/live", headers={"X": "a" * 5000})
            assert connection.getresponse().read() == b""


def test_a_model_that_cannot_compute_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tiny("bert-tiny").eval(), None, name="tiny", pooling="mean", normalize=True)
    monkeypatch.setattr(service, "compute", lambda kind, works: 1 / 0)
    address = Address(port=0)
    with pytest.raises(ZeroDivisionError):
        process.run(Server(service, ComputeThread(service.compute, budget=64, max_wait=1.0)), address, address.listen())


def test_texts_are_not_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("DEBUG")
    with serving(tiny("bert-tiny").eval()) as asked:
        asked("/embed", {"inputs": "asecret"})
        asked("/embed", {"inputs": ["asecret", 1]})
        monkeypatch.setattr(asked.server.service, "compute", lambda kind, works: 1 / 0)
        assert asked("/embed", {"inputs": "asecret"})[0] == 424
    assert "asecret" not in caplog.text


def test_pickles_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="run: encoderlab convert"):
        Service.of(tmp_path)


def test_keys_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\nanother-key-of-mine\n")
    for open_to in (0o644, 0o660):
        path.chmod(open_to)
        with pytest.raises(DataError, match="others may read it; run: chmod 600"):
            read_keys(path)
    for own in (0o600, 0o440):  # the second as Kubernetes mounts a secret with fsGroup
        path.chmod(own)
        assert read_keys(path) == (KEY.encode(), b"another-key-of-mine")
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(DataError, match="fewer than 16 characters"):
        read_keys(path)


def test_how_a_folder_says_that_vectors_are_made(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == ("mean", True)
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": kind + "Transformer"}, {"path": "1_Pooling", "type": kind + "Pooling"}]
    (tmp_path / "1_Pooling").mkdir()
    for data, found in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ):
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(data))
        assert pooling_of(tmp_path) == (found, False)
    for data, said in (
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, "max_tokens, mean_tokens"),
        ({}, "none"),
    ):
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(data))
        with pytest.raises(ConfigError, match=f"pooling {said} is not implemented"):
            pooling_of(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"path": "2_Dense", "type": kind + "Dense"}]))
    with pytest.raises(ConfigError, match="module Dense is not implemented"):
        pooling_of(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, text in (
        ("1_Pooling/config.json", "{"),
        ("modules.json", '[{"type": "Pooling"}]'),
        ("modules.json", "{"),
        ("modules.json", "{}"),
        ("modules.json", "[]"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"{name}: is damaged"):
            pooling_of(tmp_path)


def test_a_folder_of_sentence_transformers_says_how_long_texts_are(tmp_path: Path) -> None:
    model = tiny("bert-tiny").eval()
    folders.save(model, tmp_path)
    assert Service.of(tmp_path).longest == 512
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    service = Service.of(tmp_path)
    with serving(service) as asked:
        assert asked("/info")[1]["max_input_length"] == 6
        assert [len(rows) for rows in asked("/embed_all", {"inputs": ["a " * 20, "a"]})[1]] == [6, 3]
        status, found, _ = asked("/embed", {"inputs": "a " * 20, "truncate": False})
        assert status == 422 and "at most 4 tokens" in found["error"]
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9999}')
    assert Service.of(tmp_path).longest == 512
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "6"}')
    with pytest.raises(DataError, match="max_seq_length '6', expected a number of tokens from 2"):
        Service.of(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert Service.of(tmp_path).longest == 512  # its tokenizer converts texts to lower case itself
    load("small-en").save(tmp_path / "cased")
    (tmp_path / "cased" / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ConfigError, match="do_lower_case is not implemented for a tokenizer that distinguishes case"):
        Service.of(tmp_path / "cased")


def test_releases_from_5_4_have_the_longest_text_in_the_tokenizers_file(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path)
    tokenizer = tmp_path / "tokenizer_config.json"
    fields = json.loads(tokenizer.read_text())
    (tmp_path / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.models.Transformer"}]')
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "feature-extraction"}))
    (tmp_path / "SHA256SUMS").unlink()
    for length, longest in ((9, 9), (None, 512), (int(1e30), 512), (1e30, 512)):
        tokenizer.write_text(json.dumps(fields | {"model_max_length": length}))
        assert Service.of(tmp_path).longest == longest
    tokenizer.write_text(json.dumps(fields | {"model_max_length": 0}))
    with pytest.raises(DataError, match="model_max_length 0, expected a number of tokens"):
        Service.of(tmp_path)


def test_prompts_of_sentence_transformers_are_put_before_texts(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path)
    place = tmp_path / "config_sentence_transformers.json"
    named = {"query": "the red cat ", "document": ""}
    place.write_text(json.dumps({"prompts": named, "default_prompt_name": "query"}))
    with serving(Service.of(tmp_path)) as asked:
        (default,) = asked("/embed", {"inputs": "sat"})[1]
        (plain,) = asked("/embed", {"inputs": "sat", "prompt_name": "document"})[1]
        (written,) = asked("/embed", {"inputs": "the red cat sat", "prompt_name": "document"})[1]
        assert np.allclose(default, written, atol=1e-6) and not np.allclose(default, plain, atol=1e-3)
        (of_openai,) = asked("/v1/embeddings", {"input": "sat"})[1]["data"]
        assert np.allclose(of_openai["embedding"], default, atol=1e-6)
        status, found, _ = asked("/embed", {"inputs": "sat", "prompt_name": "passage"})
        assert status == 422 and "no prompt called 'passage': it has query, document" in found["error"]
        with serving(Service.of(tmp_path), accept_ids=True) as takes_ids:
            status, found, _ = takes_ids("/embed", {"inputs": [[9, 8]]})
            assert status == 422 and "prompt stands before texts, not before token ids" in found["error"]
            assert takes_ids("/embed", {"inputs": [[9, 8]], "prompt_name": "document"})[0] == 200
        (tokens,) = asked("/tokenize", {"inputs": "sat", "prompt_name": "query"})[1]
        assert [token["text"] for token in tokens if not token["special"]][-1] == "sat" and len(tokens) > 4
    place.write_text(json.dumps({"prompts": named, "default_prompt_name": "passage"}))
    with pytest.raises(DataError, match="default_prompt_name is 'passage', expected one of"):
        Service.of(tmp_path)
    place.write_text(json.dumps({"prompts": ["query"]}))
    with pytest.raises(DataError, match="expected texts by name"):
        Service.of(tmp_path)


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    place = str(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, code, message in (
            (["--port", port], 2, "cannot listen on 127.0.0.1"),
            (["--port", "65536"], 2, "--port 65536 does not exist; give a number from 0 to 65535"),
            (["--host", "0.0.0.0"], 2, "can be reached by other machines; give --key-file"),
            (["--max-texts", "0"], 2, "--max-texts is 0; give at least 1"),
            (["--rate", "0"], 2, "--rate is 0; give a number above 0"),
            *((["--drain", wrong], 2, f"--drain is {wrong}; give 0, or a number above it") for wrong in ("nan", "-1")),
            (["--drain-delay", "inf"], 2, "--drain-delay is inf; give 0, or a number above it"),
            (
                ["--allow-host", "me.example:80"],
                2,
                "--allow-host me.example:80: expected a name or an address, without",
            ),
            (["--allow-host", "[::1]"], 2, "--allow-host [::1]: expected a name or an address, without a port"),
            *(
                (["--cors", wrong], 2, f"--cors {wrong}: expected an origin")
                for wrong in ("a.example", "http://a/", "")
            ),
            (["--key-file", str(tmp_path / "none")], 3, "cannot be read"),
        ):
            assert main(["serve", place, *words]) == code
            assert message in " ".join(capsys.readouterr().err.split())


def test_two_models_have_limits_and_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is longer; OpenAI's client asks for its name, and Hugging Face's posts to its address."""
    for name, longest in (("short", 16), ("long", 64)):
        folders.save(tiny("bert-tiny"), tmp_path / name)
        (tmp_path / name / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    started: list[Server] = []
    monkeypatch.setattr(process, "run", lambda server, address, listener: (started.append(server), listener.close()))
    options = ServeOptions(beside=tmp_path / "long", allow_host=["::1", "*"])
    answer(tmp_path / "short", options, port=0)
    with serving(tiny("bert-tiny").eval()) as asked:
        (both,) = started
        both.load()
        asked.server.app.app = both.app.app  # type: ignore[attr-defined]
        long = "a" * 5000
        assert asked("/embed", {"inputs": long})[0] == 413 and asked("/beside/embed", {"inputs": long})[0] == 200
        assert asked("/beside", {"inputs": "a"})[1] == asked("/beside/", {"inputs": "a"})[1]
        assert asked("/beside", {"inputs": 1})[1].keys() == {"error"}
        assert [one["id"] for one in asked("/beside/v1/models")[1]["data"]] == ["long"]
        assert asked("/beside/v1/models/long")[0] == asked("/v1/models/short")[0] == 200
        both.engine.stop()


def test_a_port_is_taken_before_the_model_is_loaded() -> None:
    """Else a second server would say that it is at the port of one that still loads, and fail afterwards."""
    with Address(port=0).listen() as first:
        with pytest.raises(ConfigError, match="cannot listen on 127.0.0.1"):
            Address(port=first.getsockname()[1]).listen()


def test_workers_do_not_share_the_port_of_other_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with Address(port=0, shared=True).listen() as keeper:  # as the other workers' supervisor holds it
        port = str(keeper.getsockname()[1])
        assert main(["serve", str(tmp_path / "model"), "--workers", "2", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in " ".join(capsys.readouterr().err.split())


def await_the_signal(*, shared: bool, place: str, port: int) -> None:
    """In the place of a server: note its process, and that it was told to end."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    Path(place, "began").write_text(str(os.getpid()))
    while not told.wait(0.05):
        pass
    Path(place, "ended").touch()


def test_workers_end_when_their_supervisor_was_killed(tmp_path: Path) -> None:
    script = (
        "from encoderlab.deploy.serve.workers import supervise\n"
        "from tests.deploy.test_serve_process import await_the_signal\n"
        "if __name__ == '__main__':\n"
        f"    told = {{'place': {str(tmp_path)!r}}}\n"
        "    supervise(await_the_signal, told, 1, host='127.0.0.1', port=0, say=print)"
    )
    (tmp_path / "script.py").write_text(script)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    run = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path}) as parent:
        wait_for(tmp_path / "began")
        parent.kill()
    wait_for(tmp_path / "ended")


def wait_for(path: Path) -> None:
    end = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)


@contextlib.contextmanager
def command(
    folder: Path, *before: str, flags: tuple[str, ...] = (), first: str = "", **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Asked]]:
    """``encoderlab serve`` in a process of its own, when it is ready.

    ``before`` are words before the command, ``flags`` those after it, ``first`` is Python to run before it.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = f"{first}\nif __name__ == '__main__':\n    from encoderlab.cli import main\n    raise SystemExit(main())"
    words = [*before, sys.executable, "-c", script, "serve", str(folder), "--port", str(port), *flags]
    told = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=told) as server:
        asked = Asked(None, port)  # type: ignore[arg-type]
        for _ in range(3000):  # as slow as a busy machine starts it
            with contextlib.suppress(OSError):
                if asked("/health")[0] == 200:
                    break
            assert server.poll() is None, server.communicate()
            time.sleep(0.1)
        try:
            yield server, asked
        finally:
            server.terminate()


@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_is_written_to_disk(compiled: bool, tmp_path: Path) -> None:
    """All files are read-only, temporary ones in memory; only the compilation of kernels would need a folder."""
    script = 'mount --make-rprivate / && mount -o remount,ro,bind / && mount -t tmpfs none /mnt && exec "$@"'
    closed = ("unshare", "-m", "sh", "-c", script, "sh")
    if os.geteuid() != 0 or subprocess.run([*closed, "true"], capture_output=True).returncode:
        pytest.skip("a file system of its own needs root")
    model = tiny("bert-tiny").eval()
    folders.save(model, tmp_path / "model")
    wanted = encode(model, TEXTS)  # which compiles the kernels, if they are not yet
    environment = {"TMPDIR": "/mnt"} | ({} if compiled else {"ENCODERLAB_HOME": "/nowhere"})
    with command(tmp_path / "model", *closed, **environment) as (server, asked):
        assert np.allclose(asked("/embed", {"inputs": TEXTS})[1], unit(wanted), atol=1e-5)
        server.terminate()
        said = server.communicate(timeout=60)[1]
    assert (b"kernels cannot be compiled" in said) == (not compiled) and server.returncode == 0, said


def test_a_signal_loses_no_accepted_request(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with command(tmp_path / "model") as (server, asked):
        accepted: list[int] = []

        def ask() -> None:
            accepted.append(asked("/embed", {"inputs": ["the cat sat on the mat"] * 100})[0])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(600):  # until the server has accepted all of them
            if 'te_request_count{method="embed"} 8.0' in asked("/metrics")[1]:
                break
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.wait(60) == 0
        assert accepted == [200] * 8


def test_clients_are_told_to_leave_before_the_server_ends(tmp_path: Path) -> None:
    """So that a connection that a client keeps is not closed while it sends its next request."""
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with command(tmp_path / "model", flags=("--drain-delay", "3")) as (server, asked):
        connection = http.client.HTTPConnection("127.0.0.1", asked.port, timeout=60)
        said: list[str | None] = []
        while len(said) < 400 and "close" not in said:
            connection.request("GET", "/live")
            found = connection.getresponse()
            assert found.read() == b"" and found.status == 200
            said.append(found.headers["connection"])
            if len(said) == 2:
                server.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert said[:2] == [None, None] and said[-1] == "close"
        assert asked("/live")[0] == 200  # by a new connection
        assert server.wait(60) == 0


SLOW = """
import time
from encoderlab.deploy.serve.engine import ComputeThread
do = ComputeThread._do
ComputeThread._do = lambda self, batch: (time.sleep(3600), do(self, batch))
"""


def test_requests_that_drain_does_not_wait_for_get_an_error_of_their_protocol(tmp_path: Path) -> None:
    folders.save(tiny("bert-tiny"), tmp_path / "model")
    with command(tmp_path / "model", flags=("--drain", "1"), first=SLOW) as (server, asked):
        found: list[tuple[int, Any]] = []
        paths = ("/embed", "/v1/embeddings", "/embed")
        bodies = ({"inputs": "a"}, {"input": "a"}, {"inputs": ["the cat"] * 1000})
        threads = [
            threading.Thread(target=lambda path=path, body=body: found.append(asked(path, body)[:2]))
            for path, body in zip(paths, bodies, strict=True)
        ]
        for thread in threads:
            thread.start()
        for _ in range(600):
            if 'te_request_count{method="embed"} 2.0' in asked("/metrics")[1]:
                break
            time.sleep(0.01)
        time.sleep(0.5)  # the longest of them is tokenized
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.wait(60) == 0
        assert [status for status, _ in found] == [503] * 3
        said = {told["error"] if isinstance(told["error"], str) else told["error"]["message"] for _, told in found}
        assert said == {"the server ends, and could not answer in time; send the request again"}
        assert server.stderr is not None and b"Traceback" not in server.stderr.read()


def test_a_signal_while_a_worker_is_replaced_ends_the_new_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Worker:
        """The first one is dead; while the second one starts, a signal comes."""

        def __init__(self, **given: Any) -> None:
            self.alive, self.exitcode, self.pid = bool(started), 1, 2**22 + 1  # no process has this number

        def start(self) -> None:
            started.append(self)
            if self.alive:
                signal.raise_signal(signal.SIGTERM)

        def is_alive(self) -> bool:
            return self.alive

        def terminate(self) -> None:
            self.alive = False

        def join(self) -> None: ...

    looks = iter(range(20))
    monkeypatch.setattr(workers, "SOON", -1.0)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=Worker))
    monkeypatch.setattr(workers.time, "sleep", lambda seconds: next(looks))  # too many are an error
    workers.supervise(print, {}, 1, host="127.0.0.1", port=0, say=lambda text: None)
    assert len(started) == 2 and not started[1].alive
