#!/bin/sh
# Slurm's Epilog on a node of forebay: tells the node daemon that the job has left this node, so that its
# instances can go. It is bounded and never fails, because an Epilog that fails drains the node; a job for
# which it did not run is found by the burst buffer's post-run.
[ -n "${SLURM_JOB_ID:-}" ] || exit 0
timeout -s KILL "${FOREBAY_EPILOG_LIMIT:-60}" "${FOREBAY:-/usr/bin/forebay}" job epilog \
    --job "$SLURM_JOB_ID" >/dev/null 2>&1 </dev/null || true
exit 0
