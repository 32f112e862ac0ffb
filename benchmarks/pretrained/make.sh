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
    small-en) language=en first=4e14 second=2e14 third=6e14 text=(benchmarks.studies.text "$DATA/pretrain_en") ;;
    small-zh) language=zh first=1.7e14 second=0.8e14 third= text=(benchmarks.pretrained.text_zh "$DATA/pretrain_zh" "${ARTICLES:-}") ;;
    *) echo "$name: expected small-en or small-zh" >&2; exit 2 ;;
esac
if [ ! -e runs/corpora/$language ]; then
    "$PYTHON" -m "${text[@]}" runs/text/$language
    # The tokenizer was trained by `--tokenizer wordpiece --cased --vocab-size 8192`; a later version draws another sample.
    encoderlab corpus build runs/text/$language --out runs/corpora/$language --validation 0.01 \
        --tokenizer src/encoderlab/pretrained/$name
fi
# stage RUN CONFIG FLOPS [--init-from MODEL]
stage() {
    encoderlab pretrain modernbert-mini --corpus runs/corpora/$language --out "runs/$1" --flops "$3" \
        --config $here/common.yaml --config "$here/$2.yaml" "${@:4}"
}
stage "$name-first" first $first
if [ -z "$third" ]; then
    stage "$name" second $second --init-from "runs/$name-first/model"
else
    stage "$name-second" second $second --init-from "runs/$name-first/model"
    # The third stage began a day later, with the weights as they came with the package then: in bfloat16.
    [ -e "runs/$name-bfloat16" ] || "$PYTHON" -c "import encoderlab, torch
encoderlab.load('runs/$name-second').to(torch.bfloat16).save('runs/$name-bfloat16')"
    stage "$name" third $third --init-from "runs/$name-bfloat16"
fi
