#!/bin/sh
# Runs test programs one after the other for tests/run.sh, shows the output of each when it ends, and adds a line `SECONDS NAME CODE`
# to the results. usage: tests/job.sh FOLDER PROGRAM... | FOLDER doc [CARGO TEST OPTION...]
set -u
folder=$1
shift
cd "$folder" || exit 1

run() { # a name, then a command
    name=$1
    shift
    log=$PROGRAM_LOGS/$name.log
    begin=$(date +%s)
    "$@" >"$log" 2>&1 </dev/null
    code=$?
    seconds=$(($(date +%s) - begin))
    echo "$seconds $name $code" >>"$PROGRAM_LOGS/results"
    flock "$PROGRAM_LOGS/results" sed "1i\\
     Running $name ($seconds s, exit code $code)" "$log"
}
if [ "$1" = doc ]; then
    shift
    run doc "$CARGO" test "$@" --doc --no-fail-fast
    exit 0
fi
for program in "$@"; do
    run "$(basename "$program")" "$program"
done
