#!/usr/bin/env bash
# Makes the models that come with the package, to the bit on a processor of the same kind; run it again to resume.
#
#     DATA=data bash benchmarks/pretrained/make.sh small-en
#     DATA=data ARTICLES=TranslateProject bash benchmarks/pretrained/make.sh small-zh
#
# DATA holds pretrain_en/ or pretrain_zh/; ARTICLES is the clone that benchmarks/pretrained/text_zh.py names. Text, corpus
# and runs lie below runs/, which git ignores; the model is runs/NAME/model.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1 here=benchmarks/pretrained
DATA=$(realpath "${DATA:-data}")
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=${THREADS:-1}
encoderlab() { "$PYTHON" -m encoderlab "$@"; }
case $name in
    small-en) language=en first=4e14 second=2e14 text=(benchmarks.studies.text "$DATA/pretrain_en") ;;
    small-zh) language=zh first=1.7e14 second=0.8e14 text=(benchmarks.pretrained.text_zh "$DATA/pretrain_zh" "${ARTICLES:-}") ;;
    *) echo "$name: expected small-en or small-zh" >&2; exit 2 ;;
esac
if [ ! -e runs/corpora/$language ]; then
    "$PYTHON" -m "${text[@]}" runs/text/$language
    encoderlab corpus build runs/text/$language --out runs/corpora/$language --tokenizer wordpiece --cased \
        --vocab-size 8192 --validation 0.01
fi
encoderlab pretrain modernbert-mini --corpus runs/corpora/$language --out "runs/$name-first" --flops $first \
    --config $here/common.yaml --config $here/first.yaml
encoderlab pretrain modernbert-mini --corpus runs/corpora/$language --out "runs/$name" --flops $second \
    --config $here/common.yaml --config $here/second.yaml --init-from "runs/$name-first/model"
