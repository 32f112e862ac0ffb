#!/usr/bin/env bash
# The studies one after the other, each for at most HOURS in a sitting; run it again and all go on where they stopped.
#
#     DATA=data HOURS=2 bash benchmarks/studies/run.sh [NAME ...]      # names of files beside this one, without .yaml
#
# DATA holds pretrain_en/, pairs/, glue/ and ner/. Text, corpus and runs lie below runs/, which git ignores; what each
# cell found is kept in benchmarks/studies/found/ as well, so that another checkout or machine goes on from there. It
# takes what the machine has left over: lowest priority, also of its group of processes.
set -euo pipefail
cd "$(dirname "$0")/../.."
DATA=$(realpath "${DATA:-data}")
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH=${CODE:-$PWD}/src${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${THREADS:-1}
renice -n 19 $$ >/dev/null
echo 19 2>/dev/null >/proc/self/autogroup || true
mkdir -p runs/corpora runs/studies
[ -e runs/data ] || ln -s "$DATA" runs/data
corpus() { # NAME WORDS SHARE-HELD-OUT
    [ ! -e "runs/corpora/$1" ] || return 0
    "$PYTHON" -m benchmarks.studies.text "$DATA/pretrain_en" "runs/text/$1" --words "$2"
    "$PYTHON" -m encoderlab corpus build "runs/text/$1" --out "runs/corpora/$1" --validation "$3" \
        --tokenizer src/encoderlab/pretrained/small-en
}
corpus en 10000000 0.01
corpus en-small 100000 0.2
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(norms architectures untrained masks static electra objectives pairs convbert deberta albert distil memory)
for name in "${names[@]}"; do
    found=benchmarks/studies/found/$name out=runs/studies/$name code=0
    mkdir -p "$found" "$out"
    cp -rn "$found/." "$out"
    "$PYTHON" -m encoderlab study "benchmarks/studies/$name.yaml" --out "$out" \
        --workers "${WORKERS:-1}" --hours "${HOURS:-2}" || code=$?
    "$PYTHON" -m benchmarks.studies.keep "$name"
    [ $code -eq 0 ] || [ $code -eq 75 ] || echo "$name: exit code $code" >&2
done
