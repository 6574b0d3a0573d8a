#!/bin/sh
# Slurm's Prolog on a node of forebay: says in the node's log that a job begins. It never fails, because a
# Prolog that fails drains the node; whether the job may start is decided by the burst buffer's pre-run.
[ -n "${SLURM_JOB_ID:-}" ] || exit 0
command -v logger >/dev/null 2>&1 && timeout -s KILL 5 logger -t forebay "job $SLURM_JOB_ID begins" || true
exit 0
