"""Tasks on Ray: two small nodes on this machine, one of which dies; and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from encoderlab.cli import main
from encoderlab.commands.bench import Comparisons
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.cluster import Need, RayTasks, tasks_on
from encoderlab.execution.local import Job
from encoderlab.execution.workers import Workers
from encoderlab.interchange.load import load
from encoderlab.tasks.runs.elsewhere import perform_all
from encoderlab.tasks.runs.trials import perform, program
from encoderlab.train.recipe import Checkpoints
from tests.tasks.runs.test_apply import ready, saved
from tests.tasks.runs.test_elsewhere import protocols, results
from tests.tasks.runs.test_trials import QUICK
from tests.tasks.synthetic import data
from tests.tasks.tiny import model
from tests.terminal import answer, messages

pytest.importorskip("ray", reason="Ray is not installed (pip install 'encoderlab[scale]')")

SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    """A head that runs nothing, and two nodes of one core each."""
    import builtins

    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=SMALL | {"num_cpus": 0})
    nodes = [made.add_node(**{key: value for key, value in SMALL.items() if key != "include_dashboard"}) for _ in "ab"]
    plain = builtins.print
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    made.wait_for_nodes()
    yield made, nodes
    ray.shutdown()
    made.shutdown()
    builtins.print = plain  # Ray replaces it


def write(path: Path, text: str, seconds: float) -> None:
    with open(path.with_suffix(".tries"), "a") as file:
        file.write("x")
    time.sleep(seconds)
    path.write_text(text)


def threads() -> str:
    return os.environ["OMP_NUM_THREADS"]


def fail() -> None:
    raise DataError("a.txt: broken")


def test_tasks_write_what_one_process_writes_and_errors_arrive(cluster, tmp_path):
    said: list[str] = []
    with RayTasks(sees=[tmp_path]) as tasks:
        tasks.ended = lambda name, result: said.append(name)
        for number in range(4):
            tasks.submit(write, tmp_path / f"{number}.txt", "text", 0, name=f"task {number}")
        tasks.finish()
        assert sorted(said) == [f"task {number}" for number in range(4)]
        assert [(tmp_path / f"{number}.txt").read_text() for number in range(4)] == ["text"] * 4
        tasks.ended = lambda name, result: said.append(result)
        tasks.submit(threads)
        tasks.finish()
        assert said[-1] == "1"  # as many as cores
        tasks.submit(fail)
        with pytest.raises(DataError, match="a.txt: broken"):
            tasks.finish()


def test_jobs_say_how_they_ended(cluster, tmp_path):
    def job(module: str, *arguments: str) -> Job:
        return Job(name=module, module=module, arguments=arguments, log=tmp_path / f"{module}.log")

    with RayTasks() as tasks:
        ended = {one.job.name: one.code for one in tasks.jobs()([job("platform"), job("no_such_module")])}
    assert ended == {"platform": 0, "no_such_module": 1}
    assert "no_such_module" in (tmp_path / "no_such_module.log").read_text()


def test_a_job_that_is_lost_too_often_has_failed_and_the_others_continue(cluster, tmp_path, monkeypatch):
    jobs = [Job(name=name, module="platform", arguments=(), log=tmp_path / name) for name in "ab"]
    lost = iter([DataError("a task was lost 6 times"), None])
    with RayTasks() as tasks:
        real = tasks._result

        def result(reference: object) -> object:
            if (error := next(lost)) is not None:
                raise error
            return real(reference)

        monkeypatch.setattr(tasks, "_result", result)
        ended = list(tasks.jobs()(jobs))
    assert sorted(one.code for one in ended) == [0, 3]
    failed = next(one.job for one in ended if one.code)
    assert "a task was lost 6 times" in failed.log.read_text()


def test_at_the_deadline_jobs_are_asked_to_stop(cluster, tmp_path):
    server = Job(name="server", module="http.server", arguments=("0",), log=tmp_path / "log")
    with RayTasks() as tasks:
        ended = list(tasks.jobs(deadline=time.monotonic() + 4)([server]))
    assert [(one.job.name, one.stopped) for one in ended] == [("server", True)]


def test_a_lost_node_loses_no_task(cluster, tmp_path):
    made, nodes = cluster
    with RayTasks(need=Need(cores=1)) as tasks:
        for number in range(3):
            tasks.submit(write, tmp_path / f"{number}.txt", "text", 4, name=str(number))
        while len(list(tmp_path.glob("*.tries"))) < 2:
            time.sleep(0.1)
        made.remove_node(nodes[1], allow_graceful=False)
        tasks.finish()
    assert [(tmp_path / f"{number}.txt").read_text() for number in range(3)] == ["text"] * 3
    assert sum(len(path.read_text()) for path in tmp_path.glob("*.tries")) == 4  # one of them twice


def test_a_head_that_was_started_again_without_its_memory_is_lost(cluster, monkeypatch):
    monkeypatch.setattr("encoderlab.execution.cluster.HEAD", 0.0)
    with RayTasks() as tasks:
        tasks.submit(time.sleep, 8)
        tasks._head.is_away, tasks._head.cluster = True, "another"
        with pytest.raises(DataError, match="is lost .another one runs there.; run the same command again"):
            tasks.finish()
    with RayTasks() as tasks:
        tasks.submit(time.sleep, 3)
        tasks._head.is_away = True  # and the same one again
        tasks.finish()


def test_nodes_that_differ_are_named(cluster, tmp_path, monkeypatch):
    import encoderlab.execution.cluster as module

    real = module._probe
    with monkeypatch.context() as patch:
        own = real([])
        for package in ("torch", "tokenizers"):
            patch.setattr(module, "versions", lambda package=package: own["versions"] | {package: "0.99"})
            with pytest.raises(ConfigError, match=f"has {package} .*, this process 0.99; install the same"):
                RayTasks().__enter__()
    monkeypatch.setattr(module, "ANSWER", 0.0)
    with pytest.raises(ConfigError, match="has not answered for 0 seconds"):
        RayTasks().__enter__()


@pytest.mark.parametrize("verb", ["corpus", "finetune", "predict", "bench"])
def test_a_folder_that_a_node_does_not_see_is_named(cluster, tmp_path, capsys, monkeypatch, verb):
    import encoderlab.execution.cluster as module

    real, here = module._probe, os.getpid()

    def probe(paths):
        return real(paths) | ({} if os.getpid() == here else {"sees": dict.fromkeys(paths, False)})

    monkeypatch.setattr(module, "_probe", probe)
    saved(ready("single")[0], tmp_path / "model")
    (tmp_path / "texts").mkdir()
    rows = "".join(f"the {('red', 'blue')[number % 2]} cat {number},{number % 2}\n" for number in range(40))
    for name in "ab":
        (tmp_path / f"texts/{name}.csv").write_text("text,label\n" + rows)
    monkeypatch.setattr("encoderlab.corpus.tokenizer.Tokenizer.train", None)  # this comes later
    words = {
        "corpus": ["corpus", "build", tmp_path / "texts/*", "--vocab-size", 45],
        "finetune": ["finetune", tmp_path / "texts/a.csv", "--model", tmp_path / "model", "--seeds", 1],
        "predict": ["predict", tmp_path / "model", tmp_path / "texts"],
        "bench": ["bench", "train", "bert", "--corpus", tmp_path / "texts"],
    }[verb]
    if verb != "bench":
        words += ["--out", tmp_path / "out"]
    said = messages(capsys, 2, *words, "--on", "ray")
    assert "error: node " in said and f"does not see {tmp_path}" in said and "where all nodes see it" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (Need(cores=64), "a task needs 64 cores, 0 GPUs, 0 GB, and no node has that .the largest: 1 cores, 0 GPUs"),
        (Need(gpus=1), "a task needs 1 cores, 1 GPUs, 0 GB"),
        (Need(memory=10**15), "a task needs 1 cores, 0 GPUs, 1e[+]06 GB"),
    ],
)
def test_what_no_node_has_is_refused(cluster, need, said):
    with pytest.raises(ConfigError, match=said):
        RayTasks(need=need).__enter__()
    with RayTasks(need=Need(cores=None, gpus=None)) as tasks:  # there is none, so none is asked for
        assert tasks.threads == 1  # all of a node


def test_no_other_cluster_is_taken_than_the_one_that_is_named():
    asked = []

    class Ray:
        def init(self, **options: object) -> None:
            asked.append(options["address"])
            raise ValueError("no such address")

    tasks = RayTasks("nowhere")
    tasks._ray = Ray()
    with pytest.raises(ConfigError, match=r"no cluster at nowhere \(no such address\)"):
        tasks._connect()
    assert asked == ["nowhere"]


@pytest.mark.parametrize("verb", ["predict", "encode", "finetune", "bench"])
def test_an_address_without_a_cluster_is_refused_at_once(verb, tmp_path, capsys, monkeypatch):
    """As is a machine without Ray; and nothing is left behind."""
    saved(ready("single")[0], tmp_path / "model")
    (tmp_path / "texts").mkdir()
    rows = "".join(f"the {('red', 'blue')[number % 2]} cat {number},{number % 2}\n" for number in range(40))
    (tmp_path / "texts/a.csv").write_text("text,label\n" + rows)
    (tmp_path / "texts/b.txt").write_text("the cat\n")
    words = {
        "predict": ["predict", tmp_path / "model", tmp_path / "texts"],
        "encode": ["encode", tmp_path / "model", "--file", tmp_path / "texts"],
        "finetune": ["finetune", tmp_path / "texts/a.csv", "--model", tmp_path / "model", "--seeds", 1],
        "bench": ["bench", "predict", "bert", "--corpus", tmp_path / "texts"],
    }[verb]
    if verb != "bench":
        words += ["--out", tmp_path / "out"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    said = messages(capsys, 2, *words, "--on", f"ray=127.0.0.1:{port}")
    assert f"no cluster at 127.0.0.1:{port} (" in said and "start one with: ray start --head" in said
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "--on ray needs ray" in messages(capsys, 4, *words, "--on", "ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR\r\n", b""])
def test_what_is_not_ray_is_refused_at_once(answer, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=greet)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"no cluster at 127.0.0.1:{port} \(what answers there is not Ray"):
            RayTasks(f"127.0.0.1:{port}").__enter__()
        thread.join()
    with pytest.raises(ConfigError, match="expected the head's HOST:PORT"):
        RayTasks("ray://127.0.0.1:10001").__enter__()


def test_an_error_of_another_node_names_the_node(monkeypatch):
    import encoderlab.execution.cluster as module

    def refused():
        raise DataError("s3://a/b: no credentials")

    here = module.platform.node()
    for driver, words in (("elsewhere", f"node {here}: s3://a/b"), (here, "s3://a/b")):
        with pytest.raises(DataError, match=f"^{words}"):
            module._call(sys.argv, os.getcwd(), driver, refused)


def test_the_place_is_read_from_the_option():
    assert isinstance(tasks_on("local", workers=1), Workers)
    assert isinstance(tasks_on("ray=10.0.0.1:6379"), RayTasks)
    for wrong in ("slurm", "ray=", "local=2"):
        with pytest.raises(ConfigError, match="expected local, ray or ray=ADDRESS"):
            tasks_on(wrong)
    with pytest.raises(ConfigError, match="--workers is for --on local"):
        tasks_on("ray", workers=2)


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"needs ray, which is not installed; run: pip install 'encoderlab\[scale\]'"):
        RayTasks().__enter__()


@pytest.mark.parametrize("near", [None, 0.5])
def test_a_corpus_of_a_cluster_has_the_bytes_of_one_machine(cluster, near, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"A document about the number {n}, and of {n * n}." for n in range(3000)))
    selection = Selection(near_duplicates=near)
    settings = BuildSettings(sources=(str(text),), tokenizer=NewTokenizer(vocab_size=200), selection=selection)
    alone, together = tmp_path / "alone", tmp_path / "together"
    build_corpus(settings, alone)
    build_corpus(settings, together, cluster=lambda sees: RayTasks(sees=sees))
    files = [path.relative_to(alone) for path in alone.rglob("*") if path.is_file()]
    assert [(alone / name).read_bytes() for name in files] == [(together / name).read_bytes() for name in files]


@pytest.mark.parametrize(("verb", "suffix"), [("predict", ".jsonl"), ("encode", ".npy")])
def test_outputs_of_many_files_are_those_of_one_process(cluster, verb, suffix, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # other than the nodes' own
    saved(ready("single")[0], tmp_path / "model")
    (tmp_path / "texts").mkdir()
    for number in range(3):
        lines = [f"the red cat {number} {line}\n" for line in range(3 * number + 1)]
        (tmp_path / f"texts/{number}.txt").write_text("".join(lines))
    words = [verb, "model", *(["--file"] if verb == "encode" else []), "texts/"]
    answer(capsys, *words, "--out", "here", "--threads", 1)
    answer(capsys, *words, "--out", "there", "--on", "ray")
    outputs = sorted(tmp_path.glob(f"here/*.txt{suffix}"))
    assert len(outputs) == 3 and all(
        one.read_bytes() == (tmp_path / "there" / one.name).read_bytes() for one in outputs
    )


def test_scores_of_many_files_are_those_of_one_process(cluster, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(ready("single")[0], tmp_path / "model")
    labels = load(tmp_path / "model").config.labels
    for number in range(3):
        rows = "".join(f"the red cat {line},{labels[line % len(labels)]}\n" for line in range(4 * number + 4))
        Path(f"{number}.csv").write_text("text,label\n" + rows)
    words = ["evaluate", "model", *(f"{number}.csv" for number in range(3))]
    assert answer(capsys, *words, "--threads", 1)[0] == answer(capsys, *words, "--on", "ray")[0]


def test_a_study_on_a_cluster_has_the_models_of_one_process(cluster, tmp_path):
    Path(tmp_path / "text.txt").write_text("\n\n".join(f"A text about the number {n * n}." for n in range(300)))
    build_corpus(
        BuildSettings(sources=(str(tmp_path / "text.txt"),), tokenizer=NewTokenizer(vocab_size=150)),
        tmp_path / "corpus",
    )
    study = {
        "corpus": "corpus",
        "recipe": "bert-tiny",
        "budget": {"steps": 2},
        "seeds": 1,
        "tune": None,
        "set": {"phases": [{"length": 16, "rows": 2}]},
        "arms": {"few": None, "many": {"set": {"objective.masking.rate": 0.4}}},
    }
    (tmp_path / "study.json").write_text(json.dumps(study))
    for out, words in (("alone", ["--workers", "1"]), ("together", ["--on", "ray"])):
        assert main(["study", str(tmp_path / "study.json"), "--out", str(tmp_path / out), *words]) == 0
    models = [path.relative_to(tmp_path / "alone") for path in tmp_path.glob("alone/**/model/model.safetensors")]
    assert len(models) == 2
    assert all(
        (tmp_path / "together" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes() for name in models
    )


def test_comparisons_on_a_cluster_have_the_form_of_one_process(cluster, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(f"A document about the number {n}, and of {n * n}." for n in range(300)))
    build_corpus(BuildSettings(sources=("text.txt",), tokenizer=NewTokenizer(vocab_size=200)), "corpus")
    words = ["bench", "train", "--corpus", "corpus", "--layers", 1, "--width", 64, "--rows", 2]
    words += ["--length", 16, "--turns", 1, "--steps", 1]
    alone = answer(capsys, *words, "bert")[0]
    there = answer(capsys, *words, "bert", "electra", "--on", "ray")[0]["measurements"]
    assert list(there) == ["bert", "electra"] and there["bert"].keys() == alone.keys()
    assert all(one["threads"] == 1 and one["node"] == alone["node"] for one in there.values())


def compare(name: str, threads: int, say: object, *, place: Path) -> dict[str, int]:
    import ray

    with open(place / "places", "a") as file:
        file.write(f"{ray.get_runtime_context().get_node_id()}\n")
    time.sleep(4)
    return {"threads": threads}


def test_a_comparison_whose_node_is_lost_is_repeated(cluster, tmp_path, capsys):
    made, _ = cluster
    node = made.add_node(num_cpus=1, object_store_memory=80 << 20)
    made.wait_for_nodes()
    places = tmp_path / "places"

    def remove() -> None:
        while not places.exists() or node.node_id not in places.read_text():
            time.sleep(0.1)
        made.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove, daemon=True)
    thread.start()
    names, measure = [f"bert-{number}" for number in range(6)], partial(compare, place=tmp_path)
    done = Comparisons(on="ray").measure(measure, names, lambda result: None, threads=None, reads=[tmp_path])
    thread.join()
    assert list(done["measurements"]) == names and {one["threads"] for one in done["measurements"].values()} == {1}
    assert "raylet" not in capsys.readouterr().out  # which is for the answer
    assert places.read_text().count(node.node_id) == 1 and len(places.read_text().split()) == 7  # one of them twice


def test_fine_tuning_on_a_cluster_has_the_results_of_one_process(cluster, tmp_path):
    """The suite's runs as tasks, with a search; the model and the texts travel with them."""
    here = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for one in protocols(tmp_path / "alone").values():
            perform(one)
    finally:
        torch.set_num_threads(here)
    with RayTasks(sees=[tmp_path]) as tasks:
        perform_all(protocols(tmp_path / "ray"), tasks)
    assert results(tmp_path / "alone") == results(tmp_path / "ray")


def test_a_run_whose_worker_is_lost_continues_from_its_last_checkpoint(cluster, tmp_path):
    task, splits = data("tagged", train=64, dev=16)
    recipe = replace(QUICK.recipe, epochs=40, checkpoints=Checkpoints(steps=20, keep=1))
    slow = replace(QUICK, recipe=recipe, seeds=1)
    run = tmp_path / "ray/runs/seed-1"

    def kill() -> None:
        while not (run / "checkpoints/latest").exists():
            time.sleep(0.02)
        for handle in Path("/proc").glob("[0-9]*/fd/*"):
            process = int(handle.parts[2])
            with contextlib.suppress(OSError):
                if str(run) in os.readlink(handle) and process != os.getpid():
                    os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with RayTasks(sees=[tmp_path]) as tasks:
        perform_all({"": program(slow, model(), task, splits, tmp_path / "ray")}, tasks)
    thread.join()
    sessions = json.loads((run / "provenance.json").read_text())["sessions"]
    assert [one["command"] for one in sessions] == [sessions[0]["command"]] * 2
    assert "default_worker" not in str(sessions[0]["command"]) and "resuming from" in (run / "run.log").read_text()
    perform(program(slow, model(), task, splits, tmp_path / "alone"))
    assert results(tmp_path / "alone") == results(tmp_path / "ray")
