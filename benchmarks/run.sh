#!/usr/bin/env bash
# All benchmarks on one text file, then the tables of README.md and docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=${1:-}
if [ ! -f "$corpus" ]; then
  echo "error: give a text file: make bench CORPUS=path/to/text.txt" >&2
  exit 2
fi
python=.venv/bin/python
"$python" benchmarks/tokenizer/train.py "$corpus"
"$python" benchmarks/tokenizer/encode.py "$corpus"
"$python" benchmarks/training/step.py "$corpus"
"$python" benchmarks/ops/linear_cross_entropy.py
"$python" benchmarks/ops/adamw.py
"$python" -m lmworks.bench.report
