#!/bin/bash
# What does `forebay bench` itself cost? 4 KiB transfers to nothing, with one task and with two.
#
#   bench/null.sh [FOREBAY]     # the binary; default target/release/forebay
#   ROUNDS=5                    # environment
#
# Prints operations per second of processor time, user and system, of the whole command: what one
# core does when nobody else has it. The best of the rounds, because a disturbance can only slow one
# down. Exit code 1 if one is under 2 million.
set -euo pipefail

forebay=${1:-target/release/forebay}
rounds=${ROUNDS:-5}
gib=16
TIMEFORMAT='%U %S'
verdict=0
for tasks in 1 2; do
    for access in write read; do
        flag=-${access:0:1}
        best=0
        for ((round = 0; round < rounds; round++)); do
            took=$({ time "$forebay" bench ior "$flag" --target null -t 4k -b ${gib}g -N $tasks \
                -O summaryFormat=CSV >/dev/null 2>&1; } 2>&1)
            rate=$(awk -v t="$took" -v ops=$((gib * 262144 * tasks)) \
                'BEGIN { split(t, s, " "); printf "%.0f", ops / (s[1] + s[2]) }')
            [ "$rate" -le "$best" ] || best=$rate
        done
        printf '%-5s %d task(s): %9d operations a second per core\n' $access $tasks "$best"
        [ "$best" -ge 2000000 ] || verdict=1
    done
done
exit $verdict
