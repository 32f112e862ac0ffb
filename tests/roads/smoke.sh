#!/usr/bin/env bash
# A short walk along the whole road with an installed encoderlab, in the folder given; used on the wheel, away from the sources.
set -euo pipefail
mkdir -p "$1" && cd "$1"

python - <<'PY'
import encoderlab, pathlib
home = pathlib.Path(encoderlab.__file__).resolve()
assert "site-packages" in home.parts, f"not the installed package: {home}"
PY
encoderlab --version
encoderlab --help >/dev/null

python - <<'PY'
from pydoc_data import topics
with open("text.txt", "w", encoding="utf-8") as file:
    for name in sorted(topics.topics):
        file.write(" ".join(topics.topics[name].split()) .replace(". ", ".\n") + "\n\n")
with open("labels.tsv", "w", encoding="utf-8") as file:
    file.write("text\tlabel\n")
    for place in range(80):
        file.write(f"{'the class has a method' if place % 2 else 'a string of some bytes'} number {place}\t{'ab'[place % 2]}\n")
PY
encoderlab corpus build text.txt --out corpus --vocab-size 2000
encoderlab corpus inspect corpus >/dev/null
encoderlab pretrain bert-tiny --corpus corpus --out run --steps 20 --set log_every=5
test -s run/report.html && test -s run/metrics.jsonl && test -s run/model/model.safetensors
encoderlab fill-mask run "The [MASK] of a list." --json | python -c 'import json, sys; assert json.load(sys.stdin)["answers"][0]["masks"]'
encoderlab encode run "a text" "another" --out vectors.npy
encoderlab finetune labels.tsv --model run --out tuned --seeds 1 --set epochs=1
encoderlab describe bert-base >/dev/null
! encoderlab pretrain bert-tiny --corpus nowhere --out other 2>error.txt
grep -q '^error: ' error.txt && ! grep -q Traceback error.txt
echo "smoke road: done"
