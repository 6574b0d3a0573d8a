#!/bin/sh
# What does `forebay bench` itself cost? 4 KiB transfers to nothing, with one task and with two.
#
#   bench/null.sh [FOREBAY]     # the binary; default target/release/forebay
#   ROUNDS=5                    # environment
#
# Prints the best operations a second per task of the rounds; exit code 1 if one is under 2 million.
# The best, because a disturbance can only slow a round down. With more tasks than idle processors
# the figure per task is that of a share of a processor.
set -eu

forebay=${1:-target/release/forebay}
rounds=${ROUNDS:-5}
verdict=0
for tasks in 1 2; do
    for access in write read; do
        flag=-$(printf %.1s "$access")
        round=0
        best=$(while [ "$round" -lt "$rounds" ]; do
            "$forebay" bench ior "$flag" --target null -t 4k -b 16g -N "$tasks" -O summaryFormat=CSV
            round=$((round + 1))
        done | awk -F, -v n="$tasks" -v a="$access" '$1 == a && $3 / n > best { best = $3 / n }
            END { printf "%.0f", best }')
        printf '%-5s %d task(s): %9d operations a second each\n' "$access" "$tasks" "$best"
        [ "$best" -ge 2000000 ] || verdict=1
    done
done
exit $verdict
