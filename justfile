# The commands to remember.

# Format, lint.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --quiet -- -D warnings

# All tests.
test:
    cargo test --workspace

# The golden logits of every architecture only.
golden:
    cargo test --test main golden

# Speed of a model against this machine's own limits.
bench model:
    cargo run --release -- bench -m {{model}}

# The server with the official clients of its APIs.
clients:
    cargo build
    tests/clients/run

# The web page: bundles it, tests it.
page:
    web/build
    web/test/run

# What was published, next to what this machine measures: docs/BENCHMARKS.md. Twelve minutes; nothing else should run.
headlines:
    cargo build --release
    target/release/kvas bench-op headlines

# The picture of the README, typed anew.
tour:
    cargo build --release
    tools/tour/record > docs/tour.svg.new && mv docs/tour.svg.new docs/tour.svg

# What is given to others, for this machine and for aarch64.
release:
    deploy/release --twice
    deploy/release aarch64-unknown-linux-gnu

# The image for containers, and an answer in it.
image:
    deploy/release
    deploy/image --check

# Every fuzz target, for so many seconds each.
fuzz seconds="60":
    fuzz/run {{seconds}}
