#!/usr/bin/env bash
# What runs on a GPU, proven and timed: everything is written below OUT, a log and a JSON file for each part.
#
#     OUT=gpu CORPUS=corpora/en DATA=data bash benchmarks/gpu.sh [tests|speed|predict|kernels|run|recipes|studies ...]
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
FAMILIES=${FAMILIES:-bert roberta albert distilbert electra convbert deberta-v1 deberta-v2 deberta-v3 xlnet modernbert}
RUN_MINUTES=${RUN_MINUTES:-10}
RUN_RECIPES=${RUN_RECIPES:-electra-small}
STUDY_MINUTES=${STUDY_MINUTES:-9}
SIDE_BY_SIDE=$("$PYTHON" -c "import xdist" 2>/dev/null && echo "-n $(($(nproc) < 12 ? $(nproc) : 12))")
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 CI=1
mkdir -p "$OUT"

lab() { "$PYTHON" -m encoderlab "$@"; }
hours() { "$PYTHON" -c "print($1 / 60)"; }

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
from benchmarks.gpu_profile import peak
gpu = torch.cuda.is_available()
device = torch.cuda.get_device_name() if gpu else "cpu"
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "device": device, "bf16": peak()}))
PY
}

tests() {
    # Values, gradients and dropout masks against the plain twins; recorded layers; two runs and a resumed one, to the
    # bit; losses as on a CPU; steps that must not wait.
    part tests 6 "$PYTHON" -m pytest -q $SIDE_BY_SIDE tests/nn/gpu tests/nn/test_recording.py tests/test_devices.py \
        tests/train/test_no_waiting.py tests/train/test_on_gpu.py ${SMALL:+-x -k "test_rows or test_recording"}
}

# Against transformers, plain and compiled; a name is FAMILY-WIDTH:LENGTH:ROWS.
speed() {
    if [ -n "$SMALL" ]; then
        part speed-small 9 "$PYTHON" -m benchmarks.gpu_speed bert-64:32:2 electra-64:32:2 --corpus "$CORPUS" --layers 1 \
            --turns 1 --steps 1 --precision fp32 --against transformers
        return
    fi
    local speed=("$PYTHON" -m benchmarks.gpu_speed --corpus "$CORPUS" --against transformers)
    part speed-256 12 "${speed[@]}" $(printf '%s-256:128:256 ' $FAMILIES) --compile
    part speed-512 6 "${speed[@]}" $(printf '%s-256:512:64 ' $FAMILIES)
    part speed-768 9 "${speed[@]}" $(printf '%s-768:128:128 ' $FAMILIES) bert-large:128:64 --together 3
}

predict() {
    local predict=("$PYTHON" -m benchmarks.gpu_speed --corpus "$CORPUS" --against transformers --together 11)
    if [ -n "$SMALL" ]; then
        part predict-small 5 "${predict[@]}" bert-64 electra-64 --layers 1 --texts 4 --turns 1 --precision fp32
    else
        part predict 5 "${predict[@]}" $(printf '%s-768 ' $FAMILIES) --texts 2048
    fi
}

# Time by kernel of a few steps, and how long the processor takes to launch them.
kernels() {
    if [ -n "$SMALL" ]; then
        part kernels 5 "$PYTHON" -m benchmarks.gpu_profile bert electra --corpus "$CORPUS" --layers 1 --small
    else
        part kernels 5 "$PYTHON" -m benchmarks.gpu_profile $(printf '%s-256 ' $FAMILIES) bert-768 --corpus "$CORPUS"
    fi
}

# A model of as many tokens as RUN_MINUTES allow, then fine-tuned with three seeds. The warm-up is longer than ELECTRA's
# share: with 32 steps of it a run of 3,200 steps stayed on the plateau of token frequencies (docs/LOG.md).
run() {
    local recipe task budget=() seeds=3
    [ -n "$SMALL" ] && budget=(--steps 3 --set evaluation.rows=8 --set "phases.0.rows=4") && seeds=1
    for recipe in $RUN_RECIPES; do
        part run-$recipe $((RUN_MINUTES + 4)) lab pretrain "$recipe" --corpus "$CORPUS" --out "$OUT/runs/$recipe" \
            --set precision=bf16 --set schedule.warmup=0.05 "${budget[@]:---hours=$(hours "$RUN_MINUTES")}" --json
        [ -n "${DATA:-}" ] || continue
        for task in cola sst2 mrpc stsb conll2003; do
            part finetune-$recipe-$task 6 lab finetune $task --data "$DATA/$(folder $task)" --model "$OUT/runs/$recipe" \
                --out "$OUT/tasks/$recipe/$task" --seeds $seeds --set precision=bf16 ${SMALL:+--epochs 0.01} --json
        done
    done
}

# Recipes for small-en at 4.9e15 FLOPs each, on a CORPUS of ten million words with its tokenizer, scored on minimal pairs.
recipes() {
    [ -n "${DATA:-}" ] || return 0
    part recipes $((RUN_MINUTES + 4)) "$PYTHON" -m benchmarks.pretrained.recipes --corpus "$CORPUS" \
        --pairs "$DATA/pairs/blimp" --out "$OUT/recipes" --side-by-side "${SIDE:-4}" \
        ${SMALL:+--flops 1e11 --set precision=fp32 --set evaluation.rows=8 --set phases.0.rows=8}
}

# The claims of the papers, from where benchmarks/studies/found/ stands; cells run side by side on the one GPU. STUDIES
# names studies, else all run one after the other, until STUDY_MINUTES have passed.
studies() {
    if [ -n "$SMALL" ]; then
        cat >"$OUT/study.yaml" <<YAML
{corpus: "$CORPUS", recipe: bert-tiny, budget: {steps: [1, 2]}, seeds: 1, tune: null, arms: {one: null, two: {recipe: electra-tiny}},
 set: {phases: [{length: 32, rows: 4}], evaluation.rows: 8}}
YAML
        part studies 5 lab study "$OUT/study.yaml" --out "$OUT/study" --json
    elif [ -n "${DATA:-}" ]; then
        HOURS=$(hours "$STUDY_MINUTES") WORKERS=${WORKERS:-$(nproc)} part studies "$STUDY_MINUTES" \
            bash benchmarks/studies/run.sh ${STUDIES:-}
        for study in runs/studies/*; do  # the last one may have been interrupted
            "$PYTHON" -m benchmarks.studies.keep "$(basename "$study")" >>"$OUT/studies.log"
        done
        tar czf "$OUT/found.tar.gz" benchmarks/studies/found
    fi
}

export PYTHON OUT CORPUS SMALL
export -f lab
machine | tee "$OUT/machine.json" || exit 1  # a package is missing: every part would fail too
[ -e "$CORPUS/manifest.json" ] || lab corpus build python:stdlib --out "$CORPUS" --vocab-size 8000 2>"$OUT/corpus.log"
for word in "${@:-tests speed predict kernels run recipes studies}"; do
    for name in $word; do "$name"; done
done
