"""The cache of files from stores: fetched once, checked, and within its limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from encoderlab.errors import ConfigError
from encoderlab.storage import cache, places
from tests.storage.flaky import serving


def test_processes_that_want_one_file_fetch_it_once(s3):
    url = f"{s3.bucket}/shared.bin"
    places.write_bytes(url, bytes(3_000_000))
    s3.kinds, s3.failing = ("slow",), 1.0
    words = [
        sys.executable,
        "-c",
        "import sys; from encoderlab.storage import cache; print(cache.file(sys.argv[1]))",
        url,
    ]
    three = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({one.communicate(timeout=120)[0] for one in three}) == 1 and all(one.returncode == 0 for one in three)
    assert sum(count for what, count in s3.asked.items() if what.startswith("GET") and "shared.bin" in what) == 1


@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
@pytest.mark.parametrize("name", ["a.csv", ".a.csv.sha256"])
def test_a_damaged_file_of_the_cache_is_fetched_again(s3, caplog, name, how):
    places.write_bytes(f"{s3.bucket}/a.csv", b"text,label\n" * 9)
    path = cache.file(f"{s3.bucket}/a.csv")
    damaged = path.with_name(name)
    killed = path.with_name(".a.csv.999999999.tmp")  # what a killed process left
    killed.write_bytes(b"text")
    data = bytearray(damaged.read_bytes())
    data[9] ^= 1
    damaged.unlink() if how == "delete" else damaged.write_bytes(data if how == "flip" else data[:9])
    assert cache.file(f"{s3.bucket}/a.csv").read_bytes() == b"text,label\n" * 9
    assert ("has changed since it was fetched" in caplog.text) == (how != "delete") and not killed.exists()


@pytest.mark.parametrize("header", ["ETag", "Last-Modified", None])
def test_a_file_of_the_web_that_changed_is_fetched_again(monkeypatch, tmp_path, header):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(web.text)))
            if header is not None:
                self.send_header(header, web.version)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(web.text)

        do_HEAD = do_GET
        log_message = lambda self, *words: None  # noqa: E731

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as web:
        url = f"http://127.0.0.1:{web.server_address[1]}/a.csv"
        web.text, web.version = b"good,1", "Thu, 01 Jan 2026 00:00:00 GMT"
        assert cache.file(url).read_bytes() == cache.file(url).read_bytes() == b"good,1"
        web.text, web.version = b"good,0", "Thu, 01 Jan 2026 00:00:01 GMT"  # of the same size
        assert cache.file(url).read_bytes() == b"good,0"


def test_the_cache_stays_within_its_limit(s3, tmp_path, monkeypatch):
    for number in range(4):
        places.write_bytes(f"{s3.bucket}/{number}.bin", bytes(1000))
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "0.0000025")
    monkeypatch.setattr(cache, "IN_USE", -1.0)
    paths = [cache.file(f"{s3.bucket}/{number}.bin") for number in range(4)]
    assert [path.exists() for path in paths] == [False, False, True, True]
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="ENCODERLAB_CACHE_GB is 'much'"):
        cache.file(f"{s3.bucket}/0.bin")


def test_a_full_cache_keeps_all_that_belongs_to_a_file_in_use(s3, monkeypatch):
    urls = [f"{s3.bucket}/{number}.bin" for number in range(3)]
    for url in urls:
        places.write_bytes(url, bytes(1000))
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "0.0000025")
    monkeypatch.setattr(cache, "IN_USE", -1.0)
    first, second = cache.file(urls[0]), cache.file(urls[1])
    for path, age in ((first, 10), (first.with_name(f".{first.name}.sha256"), 1000), (second, 100)):
        os.utime(path, (time.time() - age,) * 2)  # the first was fetched long ago, and read again
    cache.file(urls[2])
    assert first.exists() and not second.exists()
    cache.file(urls[0])
    assert sum(count for what, count in s3.asked.items() if what.startswith("GET") and "/0.bin" in what) == 1
