#!/usr/bin/env bash
# Counts the instructions of the pure pieces of a request's way, and those of whole requests through a gateway, under valgrind,
# and compares them with benches/instructions.tsv: more than 5 % and 1 000 instructions above fails. With `--write` the file is written anew;
# what changed belongs into the commit's message. With `requests` the pieces are left out, whose program takes minutes to be built.
# Counts depend on the compiler, the C library and what the processor can do; not on how busy it is. The file's first line says with
# what it was counted: where that differs nothing is compared, and the exit status is 77. They are of builds by cargo's profile `release`,
# which is there anyway and takes a third of the time of `dist`; PD_PROXY names another program of whose requests the counts are shown beside.
set -euo pipefail
cd "$(dirname "$0")/.."

BASE=benches/instructions.tsv
LIMIT_PERCENT=5
# Small pieces move by so much with what the compiler puts into one function.
LIMIT_ALSO=1000
# An event of a stream of vLLM 0.33 has 26 bytes more than one of 0.32, a member that is null: it may cost so much more. Counted: 1.4 to 2.8 %.
NEW_SHAPE_PERCENT=3
FEW=4
MANY=24

requests_alone="" write=""
for argument; do
    case "$argument" in
        requests) requests_alone=1 ;;
        --write) write=1 ;;
        *) echo "usage: $0 [requests] [--write]" >&2; exit 2 ;;
    esac
done

if ! command -v valgrind >/dev/null; then
    command -v apt-get >/dev/null && [[ $(id -u) == 0 ]] || { echo "valgrind is missing"; exit 77; }
    timeout 120 apt-get update -qq || true
    timeout 300 apt-get install -y -qq --no-install-recommends valgrind || { echo "valgrind can't be had"; exit 77; }
fi

# Of the processor valgrind shows programs one of three.
for can in avx2 avx sse4_2 none; do grep -qw "$can" /proc/cpuinfo && break; done
here="# $(rustc --version), $(valgrind --version), $(getconf GNU_LIBC_VERSION), $(uname -m) $can, profile release"
if [[ -z "$write" || -n "$requests_alone" ]] && [[ "$(head -1 "$BASE")" != "$here" ]]; then
    printf 'not comparable: counted with\n%s\nhere is\n%s\n' "$(head -1 "$BASE")" "$here"
    exit 77
fi

new="$(mktemp)"
trap 'rm -f "$new" "$new.all"' EXIT

# count PIECE TIMES: the instructions of the whole program.
count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$exe" "$1" "$2" 2>&1 >/dev/null |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

pieces() {
    local piece few many
    exe="$(cargo bench --locked --no-run --bench instructions --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p' | tail -1)"
    [[ -x "$exe" ]] || { echo "benches/instructions.rs does not build"; exit 1; }
    while read -r piece; do
        few="$(count "$piece" "$FEW")"
        many="$(count "$piece" "$MANY")"
        [[ -n "$few" && -n "$many" ]] || { echo "'$piece' can't be counted"; exit 1; }
        # What is done once, before and after, cancels out.
        printf '%s\t%d\n' "$piece" $(((many - few) / (MANY - FEW))) >>"$new"
    done < <("$exe")
}

requests() {
    local scenes scene counted
    [[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
    scenes="$(python3 tests/instructions.py)"
    while read -r scene; do
        counted="$(python3 tests/instructions.py "${PD_PROXY:-target/release/pd-proxy}" "$scene")"
        printf '%s\t%d\n' "$scene" "$counted" >>"$new"
    done <<<"$scenes"
}

[[ -n "$requests_alone" ]] || pieces
requests

if [[ -n "$write" ]]; then
    {
        echo "$here"
        # What was not counted stays as it was.
        [[ -z "$requests_alone" ]] || awk -F '\t' 'NR == FNR { counted[$1]; next } !/^#/ && !($1 in counted)' "$new" "$BASE"
        cat "$new"
    } >"$new.all"
    cp "$new.all" "$BASE"
    cat "$BASE"
    exit
fi

awk -F '\t' -v new_shape="$NEW_SHAPE_PERCENT" -v limit="$LIMIT_PERCENT" -v also="$LIMIT_ALSO" -v all="$((!${requests_alone:-0}))" '
    /^#/ { next }
    NR == FNR { base[$1] = $2; next }
    !($1 in base) { printf "%-42s %12d  not in the file\n", $1, $2; bad = 1; next }
    {
        change = base[$1] ? ($2 - base[$1]) * 100 / base[$1] : 100
        more = change > limit && $2 - base[$1] > also
        printf "%-42s %12d %12d %+7.1f %%%s\n", $1, base[$1], $2, change, more ? "  MORE" : ""
        if (more) bad = 1
        seen[$1] = 1
        counted[$1] = $2
    }
    END {
        of_33 = counted["an event of a stream, vLLM 0.33"]
        of_32 = counted["an event of a stream"]
        if (of_33 && of_32) {
            dearer = (of_33 - of_32) * 100 / of_32
            printf "%-42s %+38.1f %%%s\n", "an event of vLLM 0.33 against one of 0.32", dearer, (dearer > new_shape) ? "  MORE" : ""
            if (dearer > new_shape) bad = 1
        }
        for (piece in base) if (all && !(piece in seen)) { printf "%-42s is counted no more\n", piece; bad = 1 }
        exit bad
    }' "$BASE" "$new"
