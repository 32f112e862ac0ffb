#!/usr/bin/env bash
# What runs on a GPU, proven and timed: everything is written below OUT, a log and a JSON file for each part.
#
#     OUT=gpu CORPUS=corpora/en DATA=data bash benchmarks/gpu.sh [tests|speed|predict|kernels|run|studies ...]
#
# Without a word all parts run, each within its MINUTES, so that a part that hangs does not cost the others. CORPUS is a
# corpus folder, by default one that is built of python:stdlib; DATA holds glue/ and ner/ for the part run, and pretrain_en/
# and pairs/ as well for the studies; both are left out without it. What the studies found is OUT/found.tar.gz, to be
# unpacked here. SMALL=1 tries every command with the smallest sizes, on a CPU too. PYTHON names the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=$(realpath -m "${OUT:-runs/gpu}")
CORPUS=${CORPUS:-$OUT/corpus}
SMALL=${SMALL:-}
FAMILIES=${FAMILIES:-bert roberta albert distilbert electra convbert deberta-v1 deberta-v2 deberta-v3 xlnet}
RUN_MINUTES=${RUN_MINUTES:-10}
RUN_RECIPES=${RUN_RECIPES:-electra-small}
STUDY_MINUTES=${STUDY_MINUTES:-9}
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1 CI=1
mkdir -p "$OUT"

lab() { "$PYTHON" -m encoderlab "$@"; }

# part NAME MINUTES COMMAND...: output to OUT/NAME.log (and OUT/NAME.json, what comes on standard output)
part() {
    local name=$1 minutes=$2 begin=$SECONDS
    shift 2
    timeout --kill-after=20 "${minutes}m" bash -c '"$@"' part "$@" >"$OUT/$name.json" 2>"$OUT/$name.log"
    echo "$name: exit $?, $((SECONDS - begin)) s" | tee -a "$OUT/summary.txt"
}

# Where a task lies below DATA
folder() { case $1 in conll2003) echo ner ;; *) echo glue ;; esac; }

machine() {
    "$PYTHON" - <<'PY'
import json, torch
gpu = torch.cuda.is_available()
facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name() if gpu else "cpu"}
if gpu:  # the peak that shares are measured against: bf16 products of random matrices
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(13):
        if turn == 3:
            start.record()
        a @ b
    stop.record()
    torch.cuda.synchronize()
    facts["bf16_tflops"] = 2 * 8192**3 * 10 / start.elapsed_time(stop) / 1e9
print(json.dumps(facts))
PY
}

tests() {
    # Values, gradients and dropout masks against the plain twins; then what resumes, and what must not wait.
    part tests-kernels 6 "$PYTHON" -m pytest -q tests/nn/gpu ${SMALL:+-x -k "test_rows or test_machine"}
    part tests-devices 4 "$PYTHON" -m pytest -q tests/test_devices.py tests/train/test_no_waiting.py
    part tests-resume 4 resumed
}

# The same run twice, the second time interrupted: the weights must be equal to the bit on this device.
resumed() {
    local steps=60 name run
    [ -n "$SMALL" ] && steps=4
    for name in bert-tiny electra-tiny deberta-v3-tiny convbert-tiny xlnet-tiny; do
        for run in whole parted; do rm -rf "$OUT/resume/$name-$run"; done
        lab pretrain $name --corpus "$CORPUS" --out "$OUT/resume/$name-whole" --steps $steps --set evaluation.rows=16 >&2 || return 1
        lab pretrain $name --corpus "$CORPUS" --out "$OUT/resume/$name-parted" --steps $steps --set evaluation.rows=16 \
            --session-hours 0.0004 >&2  # exit 75: stopped early
        lab pretrain $name --corpus "$CORPUS" --out "$OUT/resume/$name-parted" --steps $steps --set evaluation.rows=16 >&2 || return 1
        "$PYTHON" - "$OUT/resume/$name-whole" "$OUT/resume/$name-parted" <<'PY' || return 1
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
one, other = (sorted((Path(run) / "model").rglob("model.safetensors")) for run in sys.argv[1:])
assert one and len(one) == len(other)
for a, b in zip(one, other, strict=True):
    left, right = load_file(a), load_file(b)
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left), a
print(f"{sys.argv[1]}: resumed to the same bits")
PY
    done
}

speed() {
    local family
    for family in $FAMILIES; do
        if [ -n "$SMALL" ]; then
            part train-$family-small 5 lab bench train $family --corpus "$CORPUS" --layers 1 --width 64 --rows 2 --length 32 --turns 1 --steps 1 --json
            continue
        fi
        part train-$family-256 3 lab bench train $family --corpus "$CORPUS" --rows 256 --precision bf16 --against transformers --compile --turns 3 --json
        part train-$family-256-512 3 lab bench train $family --corpus "$CORPUS" --rows 64 --length 512 --precision bf16 --against transformers --turns 2 --json
        part train-$family-768 3 lab bench train $family --corpus "$CORPUS" --width 768 --rows 256 --precision bf16 --against transformers --compile --turns 2 --json
    done
    [ -n "$SMALL" ] || part train-bert-large 4 lab bench train bert --layers 24 --width 1024 --rows 128 --corpus "$CORPUS" --precision bf16 --turns 2 --json
}

predict() {
    local family
    for family in $FAMILIES; do
        if [ -n "$SMALL" ]; then
            part predict-$family-small 5 lab bench predict $family --corpus "$CORPUS" --layers 1 --width 64 --texts 4 --turns 1 --json
        else
            part predict-$family-768 3 lab bench predict $family --corpus "$CORPUS" --width 768 --texts 2048 --precision bf16 --against transformers --turns 3 --json
        fi
    done
}

# Time by kernel of a few steps, and how long the processor takes to launch them.
kernels() {
    local recipe
    for recipe in bert-mini deberta-v3-mini convbert-mini xlnet-mini; do
        part kernels-$recipe 3 "$PYTHON" -m benchmarks.gpu_profile $recipe --corpus "$CORPUS" ${SMALL:+--small}
    done
}

# A model of as many tokens as RUN_MINUTES allow, then fine-tuned with three seeds.
run() {
    local recipe task budget=() seeds=3
    [ -n "$SMALL" ] && budget=(--steps 3 --set evaluation.rows=8 --set "phases.0.rows=4") && seeds=1
    for recipe in $RUN_RECIPES; do
        part run-$recipe $((RUN_MINUTES + 4)) lab pretrain "$recipe" --corpus "$CORPUS" --out "$OUT/runs/$recipe" \
            --set precision=bf16 "${budget[@]:---hours=$(echo "$RUN_MINUTES/60" | bc -l)}" --json
        [ -n "${DATA:-}" ] || continue
        for task in cola sst2 mrpc stsb conll2003; do
            part finetune-$recipe-$task 6 lab finetune $task --data "$DATA/$(folder $task)" --model "$OUT/runs/$recipe" \
                --out "$OUT/tasks/$recipe/$task" --seeds $seeds --set precision=bf16 ${SMALL:+--epochs 0.01} --json
        done
    done
}

# The claims of the papers, from where benchmarks/studies/found/ stands; cells run side by side on the one GPU.
studies() {
    if [ -n "$SMALL" ]; then
        cat >"$OUT/study.yaml" <<YAML
{corpus: "$CORPUS", recipe: bert-tiny, budget: {steps: [1, 2]}, seeds: 1, tune: null, arms: {one: null, two: {recipe: electra-tiny}},
 set: {phases: [{length: 32, rows: 4}], evaluation.rows: 8}}
YAML
        part studies 5 lab study "$OUT/study.yaml" --out "$OUT/study" --json
    elif [ -n "${DATA:-}" ]; then
        HOURS=$(echo "$STUDY_MINUTES/60" | bc -l) WORKERS=$(nproc) part studies $((STUDY_MINUTES + 2)) \
            bash benchmarks/studies/run.sh
        tar czf "$OUT/found.tar.gz" benchmarks/studies/found
    fi
}

export PYTHON OUT CORPUS SMALL
export -f lab resumed
machine | tee "$OUT/machine.json"
[ -e "$CORPUS/manifest.json" ] || lab corpus build python:stdlib --out "$CORPUS" --vocab-size 8000 2>"$OUT/corpus.log"
for word in "${@:-tests speed predict kernels run studies}"; do
    for name in $word; do "$name"; done
done
