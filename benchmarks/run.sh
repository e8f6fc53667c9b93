#!/usr/bin/env bash
# All benchmarks on one text file, then the tables of README.md and docs/benchmarks.md. Encoding
# needs two more: text in many languages, and a folder with OpenAI's *_base.tiktoken files.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=${1:-} multilingual=${2:-} ranks=${3:-}
if [ ! -f "$corpus" ]; then
  echo "error: give a text file: make bench CORPUS=path/to/text.txt" >&2
  exit 2
fi
python=.venv/bin/python
"$python" benchmarks/tokenizer/train.py "$corpus"
if [ -f "$multilingual" ] && [ -d "$ranks" ]; then
  "$python" benchmarks/tokenizer/encode.py "$corpus" "$multilingual" "$ranks"
  "$python" benchmarks/tokenizer/exact.py "$corpus" "$multilingual" "$ranks"
else
  echo "encoding is left out: it needs MULTILINGUAL=path/to/text.txt RANKS=folder/with/tiktoken/files" >&2
fi
"$python" benchmarks/training/step.py "$corpus"
"$python" benchmarks/ops/linear_cross_entropy.py
"$python" benchmarks/ops/adamw.py
"$python" -m lmworks.bench.report
