#!/bin/sh
# Writes the table of tested versions in docs/compatibility.md from the results that have a table of versions, such as
# those of `make test-current`.
# usage: tests/compatibility.sh [FOLDER-OF-RESULTS [DOCUMENT]]
set -eu
cd "$(dirname "$0")/.."
results=${1:-docs/results}
document=${2:-docs/compatibility.md}
begin='<!-- begin: tried versions, written by tests/compatibility.sh -->'
end='<!-- end: tried versions -->'
table=$(mktemp)
trap 'rm -f "$table" "$table.new"' EXIT
{
    printf '| program | version | tried |\n|---|---|---|\n'
    for result in "$results"/*.md; do
        [ -e "$result" ] || continue
        name=${result##*/}
        awk -F' *[|] *' -v name="$name" '
            /^\| program \| version \|/ { inside = 1; next }
            !/^\|/ { inside = 0 }
            inside && $2 != "---" && $2 !~ /^-/ { printf "| %s | %s | [%s](results/%s) |\n", $2, $3, substr(name, 1, 10), name }
        ' "$result"
    done | LC_ALL=C sort -t'|' -k4,4r | LC_ALL=C sort -t'|' -k2,2 -k3,3 -u -s
} >"$table"
[ "$(wc -l <"$table")" -gt 2 ] || {
    echo "compatibility.sh: no result in $results has a table of versions" >&2
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
