#!/usr/bin/env bash
# against_peer.sh - whole training steps of ours and of a PyTorch script, in turn, on an idle machine.
#
# usage: bench/against_peer.sh PEER.py [ROUNDS]
#
# PEER.py takes --model gpt2|char --B --T --threads --dtype [--ddp N] and prints a CSV line whose 11th field is tokens/s.
# Prints, for each case, the median tokens/s of both and the median of the ratios of the rounds.
set -eu
peer=$1
rounds=${2:-3}
ours=${MINDSPEED:-build/mindspeed}
python=${PYTHON:-/usr/bin/python3}

median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

compare() { # name model peer_model batch sequence threads dtype ranks
    local name=$1 model=$2 peer_model=$3 batch=$4 sequence=$5 threads=$6 dtype=$7 ranks=$8
    local a=() b=() r=() x y ddp=""
    [ "$ranks" -gt 1 ] && ddp="--ddp $ranks"
    for _ in $(seq "$rounds"); do
        x=$("$ours" bench step --model "$model" --batch "$batch" --sequence "$sequence" --threads "$threads" \
            --ranks "$ranks" --compute "$dtype" --steps 3 --json | sed -n 's/.*"tokens_per_s": \([0-9.]*\).*/\1/p')
        y=$("$python" "$peer" --model "$peer_model" --B "$batch" --T "$sequence" --threads "$threads" \
            --dtype "$dtype" --steps 3 $ddp 2>/dev/null | tail -1 | cut -d, -f11)
        a+=("$x"); b+=("$y")
        r+=("$(awk -v x="$x" -v y="$y" 'BEGIN {print x / y}')")
    done
    printf '%-34s %10.1f %10.1f %7.2f\n' "$name" "$(printf '%s\n' "${a[@]}" | median)" \
        "$(printf '%s\n' "${b[@]}" | median)" "$(printf '%s\n' "${r[@]}" | median)"
}

printf '%-34s %10s %10s %7s\n' "tokens/s (medians of $rounds)" ours peer ratio
for dtype in fp32 bf16; do
    for threads in 1 2; do
        compare "char 6x384, 8 x 256, $dtype, $threads thr" char-6x384 char 8 256 $threads $dtype 1
    done
done
for dtype in fp32 bf16; do
    for threads in 1 2; do
        compare "GPT-2 124M, 4 x 256, $dtype, $threads thr" gpt2-124m gpt2 4 256 $threads $dtype 1
    done
done
