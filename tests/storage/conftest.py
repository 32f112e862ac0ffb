from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from encoderlab.storage import places
from tests.storage.flaky import Proxy, serving


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def s3(s3_port, monkeypatch, tmp_path) -> Iterator[Proxy]:
    """The proxy before an S3 server, with a bucket of its own (``proxy.bucket``), and a cache folder for this test."""
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(places, "FIRST_WAIT", 0.01)
    with serving(Proxy(s3_port)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        _forget()
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        system, _ = places.file_system("s3://")
        system.mkdir(bucket)
        proxy.bucket = f"s3://{bucket}"
        yield proxy
    _forget()


def _forget() -> None:
    """The next request makes a new connection, to the address of the environment."""
    places._file_system.cache_clear()
    places._KNOWN.clear()
    try:
        import fsspec
        import s3fs
    except ImportError:
        return
    s3fs.S3FileSystem.clear_instance_cache()
    assert fsspec
