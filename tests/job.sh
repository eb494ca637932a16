#!/bin/sh
# Runs test programs one after the other for tests/run.sh, shows the output of each when it ends, and adds a line
# `SECONDS NAME CODE CORE_SECONDS` to the results. PROGRAM=TEST runs only the tests with TEST in their names, and
# PROGRAM!TEST all others. usage: tests/job.sh FOLDER PROGRAM[=TEST|!TEST]... | FOLDER doc [CARGO TEST OPTION...]
set -u
folder=$1
shift
cd "$folder" || exit 1

run() { # a name, then a command
    name=$1
    shift
    log=$PROGRAM_LOGS/$name.log
    # The longest program has a higher priority than the others, because the run lasts at least as long.
    case $name in
    networks-*) ;;
    *) set -- nice -n 3 "$@" ;;
    esac
    begin=$(date +%s)
    code=0
    # The only children of this shell are the test program and the processes that it has started.
    ("$@" >"$log" 2>&1 </dev/null; code=$?; times >"$log.times"; exit "$code") || code=$?
    # User and system time of the children, such as `1m2.500000s 0m0.310000s`.
    core=$(sed -n '2s/[ms]/ /gp' "$log.times" | awk '{ printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }')
    rm -f "$log.times"
    seconds=$(($(date +%s) - begin))
    echo "$seconds $name $code $core" >>"$PROGRAM_LOGS/results"
    flock "$PROGRAM_LOGS/results" sed "1i\\
     Running $name ($seconds s, $core core seconds, exit code $code)" "$log"
}
if [ "$1" = doc ]; then
    shift
    run doc "$CARGO" test "$@" --doc --no-fail-fast
    exit 0
fi
for program in "$@"; do
    case ${program##*/} in
    *=*) run "$(basename "$program")" "${program%=*}" "${program#*=}" ;;
    *!*) run "$(basename "$program")" "${program%!*}" --skip "${program#*!}" ;;
    *) run "$(basename "$program")" "$program" ;;
    esac
done
