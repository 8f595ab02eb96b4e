#!/bin/sh
# A conversation through the command line, offline: a turn that streams, its thread on disk, and a second turn on it.
# BIN is the folder of an environment that has roder_trio[cli].
set -eu

store=.demo
rm -rf "$store"
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
roder_trio() { env -i PATH="$PATH" HOME="$HOME" TERM="${TERM:-dumb}" RODER_TRIO_PROVIDER=offline "$BIN/roder-trio" "$@"; }

say roder-trio run '"What is a nursery?"' --store "$store"
roder_trio run "What is a nursery?" --store "$store"

file=$(ls "$store"/threads/*.jsonl)
thread=$(basename "$file" .jsonl)
say head -n 2 "$file" '| cut -c 1-300'
head -n 2 "$file" | cut -c 1-300

say roder-trio run '"And a cancel scope?"' --thread "$thread" --store "$store"
roder_trio run "And a cancel scope?" --thread "$thread" --store "$store"

say roder-trio threads usage "$thread" --store "$store"
roder_trio threads usage "$thread" --store "$store"
