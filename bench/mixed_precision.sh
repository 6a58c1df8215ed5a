#!/usr/bin/env bash
# mixed_precision.sh - the char configuration in fp32 and bf16, several seeds: loss over the whole validation split.
#
# usage: bench/mixed_precision.sh TEXT [SEEDS] [STEPS]
set -eu
text=$1
seeds=${2:-3}
steps=${3:-2000}
ours=${MINDSPEED:-build/mindspeed}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

run() { # seed dtype -> validation loss
    "$ours" train --json --set data.train="$text" --set data.tokenizer=char --set train.seed="$1" \
        --set precision.compute="$2" --set train.steps="$steps" --set train.global_batch_size=12 \
        --set train.micro_batch_size=12 --set model.layers=4 --set model.hidden=128 --set model.heads=4 \
        --set model.sequence=64 --set run.threads=1 --set evaluate.every_steps=1000000 \
        --set evaluate.batches=0 --set checkpoint.dir="$dir/$1-$2" --set checkpoint.every_steps=0 |
        sed -n 's/.*"val_loss": \([0-9.e+-]*\).*/\1/p'
}

printf '%-6s %12s %12s %10s\n' seed fp32 bf16 difference
for seed in $(seq 1 "$seeds"); do
    a=$(run "$seed" fp32)
    b=$(run "$seed" bf16)
    awk -v s="$seed" -v a="$a" -v b="$b" 'BEGIN {printf "%-6d %12.6f %12.6f %+9.3f%%\n", s, a, b, 100 * (b - a) / a}'
done
