#!/usr/bin/env bash
# Makes the models that come with the package, to the bit on a processor of the same kind; run it again to resume.
#
#     DATA=data bash benchmarks/pretrained/make.sh small-en
#     DATA=data ARTICLES=TranslateProject bash benchmarks/pretrained/make.sh small-zh
#
# DATA holds pretrain_en/ or pretrain_zh/; ARTICLES is the clone that benchmarks/pretrained/text_zh.py names. Text, corpus
# and runs lie below runs/, which git ignores; the last line says where the model is.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1 here=benchmarks/pretrained
DATA=$(realpath "${DATA:-data}")
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=${THREADS:-1}
encoderlab() { "$PYTHON" -m encoderlab "$@"; }
case $name in
    small-en)
        language=en text=(benchmarks.studies.text "$DATA/pretrain_en")
        stages=(first:4e14 second:2e14 third:6e14) ;;
    small-zh)
        language=zh text=(benchmarks.pretrained.text_zh "$DATA/pretrain_zh" "${ARTICLES:-}")
        stages=(first:1.7e14 second:0.8e14 third:4e14) ;;
    *) echo "$name: expected small-en or small-zh" >&2; exit 2 ;;
esac
if [ ! -e runs/corpora/$language ]; then
    "$PYTHON" -m "${text[@]}" runs/text/$language
    # The tokenizer was trained by `--tokenizer wordpiece --cased --vocab-size 8192`; a later version draws another sample.
    encoderlab corpus build runs/text/$language --out runs/corpora/$language --validation 0.01 \
        --tokenizer src/encoderlab/pretrained/$name
fi
from=() run=
for stage in "${stages[@]}"; do
    config=${stage%:*} flops=${stage#*:}
    case $config in
        first) ;;
        second) from=(--init-from "$run/model") ;;
        *)  # Later stages began with the weights that came with the package: in bfloat16.
            [ -e "$run-bfloat16" ] || "$PYTHON" -c "import encoderlab, torch
encoderlab.load('$run').to(torch.bfloat16).save('$run-bfloat16')"
            from=(--init-from "$run-bfloat16") ;;
    esac
    run=runs/$name-$config
    encoderlab pretrain modernbert-mini --corpus runs/corpora/$language --out "$run" --flops "$flops" \
        --config $here/common.yaml --config "$here/$config.yaml" "${from[@]}"
done
echo "the model is $run/model"
