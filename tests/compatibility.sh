#!/bin/sh
# Writes the table of tested versions in docs/compatibility.md from the results that have a table with the columns
# `program`, `version` and `passed tests`, such as those of `make test-current`. A version without a passed test, and a
# result of a failed run, whose table lacks the third column, are left out.
# usage: tests/compatibility.sh [FOLDER-OF-RESULTS [DOCUMENT]]
set -eu
cd "$(dirname "$0")/.."
results=${1:-docs/results}
document=${2:-docs/compatibility.md}
begin='<!-- begin: tried versions, written by tests/compatibility.sh -->'
end='<!-- end: tried versions -->'
tab=$(printf '\t')
table=$(mktemp)
trap 'rm -f "$table" "$table.new"' EXIT
{
    printf '| program | version | passed tests, and their results |\n|---|---|---|\n'
    for result in "$results"/*.md; do
        [ -e "$result" ] || continue
        awk -F' *[|] *' -v name="${result##*/}" '
            /^\| program \| version \| passed tests \|$/ { inside = 1; next }
            !/^\|/ { inside = 0 }
            inside && $2 !~ /^-/ && $4 != "" { printf "%s\t%s\t%s\t%s\n", $2, $3, name, $4 }
        ' "$result"
    done | LC_ALL=C sort -t"$tab" -k1,1 -k2,2 -k3,3 | awk -F'\t' '
        { result = $4 " ([" substr($3, 1, 10) "](results/" $3 "))" }
        $1 == program && $2 == version { printf ", %s", result; next }
        {
            if (NR > 1) print " |"
            program = $1
            version = $2
            printf "| %s | %s | %s", program, version, result
        }
        END { if (NR > 0) print " |" }
    '
} >"$table"
[ "$(wc -l <"$table")" -gt 2 ] || {
    echo "compatibility.sh: no result in $results has a table of versions and passed tests" >&2
    exit 1
}
awk -v begin="$begin" -v end="$end" -v table="$table" '
    $0 == end { inside = 0; ended = 1 }
    !inside { print }
    $0 == begin { inside = 1; found = 1; while ((getline line < table) > 0) print line }
    END { if (!found || !ended) exit 1 }
' "$document" >"$table.new" || {
    echo "compatibility.sh: $document lacks the lines that mark the table: $begin, $end" >&2
    exit 1
}
cat "$table.new" >"$document"
