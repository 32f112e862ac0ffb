#!/usr/bin/env bash
# Makes small-en, the model that comes with the package, to the bit on a processor of the same kind; run it again to resume.
#
#     DATA=data bash benchmarks/pretrained/make.sh
#
# DATA holds pretrain_en/. Text, corpus and runs lie below runs/, which git ignores; the model is runs/small-en/model.
set -euo pipefail
cd "$(dirname "$0")/../.."
DATA=$(realpath "${DATA:-data}") here=benchmarks/pretrained
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=${THREADS:-1}
encoderlab() { "$PYTHON" -m encoderlab "$@"; }
if [ ! -e runs/corpora/en ]; then
    "$PYTHON" -m benchmarks.studies.text "$DATA/pretrain_en" runs/text/en
    encoderlab corpus build runs/text/en --out runs/corpora/en --tokenizer wordpiece --cased --vocab-size 8192 \
        --validation 0.01
fi
encoderlab pretrain modernbert-mini --corpus runs/corpora/en --out runs/small-en-first --flops 1.7e14 \
    --config $here/common.yaml --config $here/first.yaml
encoderlab pretrain modernbert-mini --corpus runs/corpora/en --out runs/small-en --flops 0.8e14 \
    --config $here/common.yaml --config $here/second.yaml --init-from runs/small-en-first/model
