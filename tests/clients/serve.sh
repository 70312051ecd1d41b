# Sourced by the scripts beside it, with $here, $binary, $home and $log set.

# Starts a server with these flags on a port of its own; $url and $server are its address and its process, which ends
# with the script.
serve() {
    mkdir -p "$home"
    # Before the server runs: its own process opens the file, which may be after the first look at it.
    : >"$log"
    "$binary" serve -m assets/hybrid-14m.q4_0.gguf --alias tiny --port 0 --chat-template-file "$here/tools.jinja" "$@" \
        >>"$log" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
    for _ in $(seq 300); do
        url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$log")
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "$0: the server did not start:" >&2
    cat "$log" >&2
    exit 1
}

# The last line of a log that says what went wrong.
why() { grep -iE "error|fail|not found" "$1" | tail -n 1 || tail -n 1 "$1"; }
