#!/usr/bin/env bash
# Makes the models that come with the package, to the bit on hardware of the same kind; run it again to resume. A GPU
# takes minutes, and one core more than a day.
#
#     DATA=data bash benchmarks/pretrained/make.sh small-en
#     DATA=data ARTICLES=TranslateProject bash benchmarks/pretrained/make.sh small-zh
#
# DATA holds pretrain_en/ or pretrain_zh/; ARTICLES is the clone that benchmarks/pretrained/text_zh.py names. Text, corpus
# and runs lie below runs/, which git ignores; the last line says where the model is.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1
DATA=$(realpath "${DATA:-data}")
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=${THREADS:-1}
case $name in
    small-en) language=en text=(benchmarks.studies.text "$DATA/pretrain_en") ;;
    small-zh) language=zh text=(benchmarks.pretrained.text_zh "$DATA/pretrain_zh" "${ARTICLES:-}") ;;
    *) echo "$name: expected small-en or small-zh" >&2; exit 2 ;;
esac
if [ ! -e runs/corpora/$language ]; then
    "$PYTHON" -m "${text[@]}" runs/text/$language
    # The tokenizer was trained by `--tokenizer wordpiece --cased --vocab-size 8192`; a later version draws another sample.
    "$PYTHON" -m encoderlab corpus build runs/text/$language --out runs/corpora/$language --validation 0.01 \
        --tokenizer src/encoderlab/pretrained/$name
fi
"$PYTHON" -m benchmarks.pretrained.recipes hybrid --corpus runs/corpora/$language --out runs/$name
