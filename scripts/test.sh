#!/usr/bin/env bash
# Runs the whole check, or the stages named, and sums it up.
#
#   scripts/test.sh [STAGE...]        stages: format tests lints docs supply long kernels loom fuzz leftovers
#                                     only when named: sim gateway ros
#
# Every stage runs even when an earlier one failed, so that one run shows everything. The exit
# status is 0 only when all of them passed. Each stage's whole output is kept in
# target/test-logs/STAGE.log; the terminal shows its progress, and what failed.
# docs/reference/testing.md says what each stage checks.
set -euo pipefail

export LC_ALL=C CARGO_TERM_COLOR=never
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly all_stages=(format tests lints docs supply long kernels loom fuzz leftovers)
# Stages that fail when no test ran: a name that matches nothing must not
# pass for a success.
readonly testing_stages=(tests long loom sim gateway ros)
# Stages that run only when they are named, and what runs them. The gateway's crates take as long to build as half of
# all others.
readonly named_stages=('sim: make sim' 'gateway: make test-gateway' 'ros: make test-ros')
# A stage that takes longer than this hangs. Lower: a slow or busy machine is failed unjustly, or one where the stage
# `tests` has to build everything first. Higher: whoever waits for a hanging run waits for longer.
readonly stage_seconds_max=${TAUTLINE_STAGE_SECONDS_MAX:-2700}
# Frames fed to the parsers in the short fuzz. Fewer would miss the million that is promised;
# more lengthens every run. `make fuzz` is the long form.
readonly fuzz_iterations=${TAUTLINE_FUZZ_ITERATIONS:-1000000}
readonly target=${CARGO_TARGET_DIR:-$PWD/target}
readonly logs=$target/test-logs

failed_stages=()
summary=()
passed=0
failed=0
unsteady=0
skipped=0
job=
watchdog=

main() {
    local stages=("$@") stage started=$SECONDS
    ((${#stages[@]})) || stages=("${all_stages[@]}")
    for stage in "${stages[@]}"; do
        declare -F "stage_$stage" >/dev/null || usage "$stage"
    done

    rm -rf "$logs"
    mkdir -p "$logs"
    list_traces >"$logs/traces-before"
    trap 'stop_stage; exit 130' INT
    trap 'stop_stage; exit 143' TERM
    for stage in "${stages[@]}"; do
        run_stage "$stage"
    done
    summarise $((SECONDS - started))
    ((${#failed_stages[@]} == 0))
}

usage() {
    echo "test: no stage is called '$1'; the stages are: ${all_stages[*]} sim gateway ros" >&2
    exit 2
}

# The stages. Each is a function that runs in a shell of its own under `set -e`.

stage_format() {
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    cargo fmt --manifest-path measure/iceoryx2/Cargo.toml --check
    cargo fmt --manifest-path measure/ethercrab/Cargo.toml --check
    cargo fmt --manifest-path gateway/Cargo.toml --check
    cargo fmt --manifest-path ros/Cargo.toml --check
    cargo fmt --manifest-path bindings/guest/rust/Cargo.toml --check
    cargo fmt --manifest-path show/guest/Cargo.toml --check
}

stage_lints() {
    shellcheck scripts/*.sh .ci/run
    cargo clippy --workspace --all-targets --locked -- -D warnings
    lint_guests
    check_bridges
}

# Users of the crates' interfaces in workspaces of their own, whose tests run only when named (stages gateway, ros):
# that they still compile. From nothing that takes 180 s of two CPUs at most, two thirds of it for Zenoh.
check_bridges() {
    local name
    for name in gateway ros; do
        if ! cargo fetch --locked --manifest-path "$name/Cargo.toml"; then
            echo "SKIPPED: cargo could not fetch the crates of $name: it was not compiled"
            continue
        fi
        cargo check --locked --manifest-path "$name/Cargo.toml" --no-default-features --all-targets \
            --target-dir "$target/$name"
    done
}

# Programs for guests, and the part of their kit that no other processor compiles.
lint_guests() {
    local architecture program
    for architecture in aarch64 x86_64; do
        if [ ! -d "$(rustc --print target-libdir --target "$architecture-unknown-none")" ]; then
            echo "SKIPPED: the toolchain has no $architecture-unknown-none: programs for its guests were not looked at"
            continue
        fi
        for program in bindings/guest/rust show/guest; do
            cargo clippy --release --locked --manifest-path "$program/Cargo.toml" \
                --target "$architecture-unknown-none" --target-dir "$target/guests" -- -D warnings
        done
        cargo clippy --locked -p tautline-guest-kit --target "$architecture-unknown-none" \
            --target-dir "$target/guests" -- -D warnings
    done
}

# The crates that this is built from: licences and sources, and known holes where the database of advisories can be
# reached.
stage_supply() {
    local manifest
    if ! cargo deny --version >/dev/null 2>&1; then
        echo "SKIPPED: cargo-deny could not be installed: licences and sources of the crates were not checked"
        return
    fi
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        cargo deny --locked --manifest-path "$manifest" --config deny.toml check bans licenses sources
    done
    if ! timeout 120 cargo deny --config deny.toml fetch db; then
        echo "SKIPPED: the database of advisories (RustSec) cannot be reached: known holes were not looked for"
        return
    fi
    cargo deny --locked --config deny.toml check advisories
}

stage_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

# Tests in a process each, by cargo-nextest, and the code in the documentation. .config/nextest.toml chooses them. A
# test that passed only when it was repeated is listed, and fails nothing.
stage_tests() {
    local status=0
    # Two tests for each processor: most of them wait, for a grace period of the kernel or a time that they asked for.
    # More would make processes late that a test expects to be in time.
    cargo nextest run --workspace --locked --no-fail-fast --color never --test-threads "$((2 * $(nproc)))" 2>&1 | tee "$logs/nextest" || status=1
    if grep -E '^ +FLAKY ' "$logs/nextest" >"$logs/unsteady"; then
        echo "unsteady tests: they failed once, and passed when repeated"
        cat "$logs/unsteady"
    fi
    cargo test --workspace --locked --doc -- --show-output || status=1
    return "$status"
}

# Boots, flights, other workspaces, and programs whose tests share what one process builds.
stage_long() {
    cargo test --locked --workspace --no-fail-fast --test long --test guest --test cell --test boards \
        --test programs --test packages --test python -- --show-output --test-threads=1
    cargo test --locked -p tautline-flight-runner -p tautline-kernel-tests -- --show-output
}

# The BPF programs under the kernels that most people run, each in an emulated machine.
# `make test-kernels` is the long form.
stage_kernels() {
    # With a test named, cargo chooses the features of crates that stage `tests` has built: nothing is built again.
    cargo build --locked --workspace --bin kernel-tests --test machine
    "$target/debug/kernel-tests" --quick --out "$target/kernel-tests-quick"
}

# A target directory of its own, or each stage would make the other build everything again.
stage_loom() {
    RUSTFLAGS="--cfg loom" cargo test --release --locked --target-dir "$target/loom" \
        -p tautline-shm --test loom --test loom_vbus -- --show-output
}

stage_fuzz() {
    cargo run --release --locked --manifest-path fuzz/Cargo.toml --target-dir "$target" \
        --bin short -- --iterations "$fuzz_iterations"
}

# The protocol core on the simulated network, over as many seeds as TAUTLINE_SIM_SEEDS says.
stage_sim() {
    cargo test --release --locked -p tautline-proto --test wire simulation:: -- --show-output
}

# The gateway and the topics of ROS 2, each in its own workspace: without the links that they share with everything else
# (feature `bpf`).
# Some of its tests start the command.
stage_gateway() {
    cargo build --locked -p taut -p taut-lab
    TAUTLINE_TAUT=$target/debug/taut workspace gateway
}

stage_ros() { workspace ros; }

workspace() {
    local name=$1
    local in_workspace=(--locked --manifest-path "$name/Cargo.toml" --no-default-features)
    export CARGO_TARGET_DIR="$target/$name"
    cargo fmt --manifest-path "$name/Cargo.toml" --check
    if cargo deny --version >/dev/null 2>&1; then
        cargo deny --locked --manifest-path "$name/Cargo.toml" --config "$name/deny.toml" check bans licenses sources
    else
        echo "SKIPPED: cargo-deny could not be installed: licences of the crates of $name were not checked"
    fi
    cargo clippy "${in_workspace[@]}" --all-targets -- -D warnings
    cargo test "${in_workspace[@]}" -- --show-output
}

# The tests must leave nothing: nothing called taut* may exist that did not before.
stage_leftovers() {
    list_traces >"$logs/traces-after"
    if comm -13 "$logs/traces-before" "$logs/traces-after" | grep .; then
        echo "error: left behind by the tests (or by a demo or test that runs beside this one)"
        return 1
    fi
}

list_traces() {
    local path
    for path in /run/netns/taut* /sys/class/net/taut* /sys/fs/bpf/taut* /dev/shm/taut*; do
        [[ ! -e $path ]] || echo "$path"
    done | sort
}

# Running one stage.

run_stage() {
    local stage=$1 log=$logs/$1.log started=$SECONDS status=0 verdict=ok
    printf '\n== %s\n' "$stage"
    start_stage "$stage" "$log"
    wait "$job" || status=$?
    job=
    kill -KILL -- "-$watchdog" 2>/dev/null || true
    wait "$watchdog" 2>/dev/null || true
    collect_log "$log"

    local stage_passed=0 stage_failed=0
    count_tests "$log"
    if ((!status && stage_failed)); then
        unsteady=$((unsteady + stage_failed))
        failed=$((failed - stage_failed))
        verdict="ok, $stage_failed unsteady"
    fi
    if ((!status && !stage_passed)) && [[ " ${testing_stages[*]} " == *" $stage "* ]]; then
        echo "error: no test ran" | tee -a "$log"
        status=1
    fi
    if ((status)); then
        verdict=FAILED
        [[ ! -e $logs/$stage.timeout ]] || verdict="FAILED: over $stage_seconds_max s"
        failed_stages+=("$stage")
        ((stage_failed)) || failed=$((failed + 1))
        show_failure "$log"
    fi
    summary+=("$(printf '%-10s %6d s  %s' "$stage" $((SECONDS - started)) "$verdict")")
    echo "${summary[-1]}"
}

# Starts a stage in a process group of its own, so that it can be stopped with all that it
# started; without one, bash would also start it with SIGINT ignored, and the tests of ^C
# would inherit that. The watchdog ends the group when its time is over. Descriptor 3 of a stage
# is for lines that the terminal alone gets; tests do not get it.
start_stage() {
    local stage=$1 log=$2
    set -m
    (
        set +m
        (
            set -e
            "stage_$stage"
        ) 2>&1 </dev/null | tee "$log" | show_progress
    ) 3>&1 &
    job=$!
    (
        sleep "$stage_seconds_max"
        touch "$logs/$stage.timeout"
        kill -TERM -- "-$job"
        sleep 10
        kill -KILL -- "-$job"
    ) >/dev/null 2>&1 &
    watchdog=$!
    set +m
}

stop_stage() {
    trap '' INT TERM
    [[ -z $job ]] || kill -TERM -- "-$job" 2>/dev/null || true
    [[ -z $watchdog ]] || kill -KILL -- "-$watchdog" 2>/dev/null || true
    [[ -z $job ]] || wait "$job" 2>/dev/null || true
    echo "test: stopped" >&2
}

# Puts the outputs of runs beside each other, STAGE.log.NAME, before the rest of the stage's log.
collect_log() {
    local log=$1
    local parts=("$log".*)
    [[ -e ${parts[0]} ]] || return 0
    cat "${parts[@]}" "$log" >"${log%.log}.whole"
    rm "${parts[@]}"
    mv "${log%.log}.whole" "$log"
}

# The lines of a log that tell how far it is; the whole is in the file.
show_progress() {
    grep --line-buffered -E \
        '^ +(Running|Doc-tests) |^test result: |^test .*FAILED|SKIPPED: |^ +(FAIL|FLAKY|TIMEOUT|SLOW|TRY|Summary) |^(error|warning)|^fuzz' ||
        true
}

# After a failure: the reports of failed tests where there are any, else the end of the log.
show_failure() {
    echo
    if grep -q '^test result: FAILED' "$1"; then
        awk '/^failures:$/ { show = 1 } show { print } /^test result/ { show = 0 }' "$1"
        grep -E '^error' "$1" || true
    else
        tail -n 120 "$1"
    fi
    echo "(all of it: $1)"
}

# Adds up a log's `test result` lines and its skipped tests, and keeps what was skipped and why.
# A test that skipped any of its work is counted as skipped and not as passed. Ignored tests are
# skipped ones. A SKIPPED line outside every test's output is one more. Sets run_stage's
# stage_passed and stage_failed. Keeps why tests failed: the line of each panic, and at most four after it.
count_tests() {
    local counts
    counts=$(awk -v list="$logs/skipped" -v reasons="$logs/failed" '
        /^ +(PASS|FLAKY|LEAK) +\[/ { name = $NF; in_successes = 1; counted = 0; from_nextest = 1 }
        /^ +(FAIL|TIMEOUT|SIGNAL|TRY) / { name = $NF; in_successes = 0; from_nextest = 1 }
        from_nextest { sub(/^ +(test .* \.\.\. )?SKIPPED: /, "SKIPPED: ") }
        /^ +Summary \[/ {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed,?$/) passed += $(i - 1)
                if ($i ~ /^failed,?$/ || $i ~ /^timed$/) failed += $(i - 1)
            }
            name = ""; in_successes = 0; from_nextest = 0
        }
        /^(note: run with |---- |failures:)/ { lines_follow = 0 }
        lines_follow && NF { print "  " $0 >>reasons; lines_follow-- }
        /^thread .* panicked at / && in_failures { print >>reasons; lines_follow = 4 }
        /^successes:$/ { in_successes = 1; name = "" }
        /^failures:$/ { in_successes = 0; in_failures = 1; name = "" }
        /^---- .* stdout ----$/ {
            name = $0
            sub(/^---- /, "", name)
            sub(/ stdout ----$/, "", name)
            counted = 0
        }
        /^test .* \.\.\. ignored/ { print $2 ": ignored" >>list }
        /^(test .* \.\.\. )?SKIPPED: / {
            reason = $0
            sub(/^.*SKIPPED: /, "", reason)
            if (name == "") { skipped++; print reason >>list }
            else if (in_successes) {
                print name ": " reason >>list
                if (!counted) { counted = 1; skipped++; passed-- }
            }
        }
        /^test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") passed += $(i - 1)
                if ($i == "failed;") failed += $(i - 1)
                if ($i == "ignored;") skipped += $(i - 1)
            }
            name = ""
            in_successes = 0
            in_failures = 0
        }
        END { print passed + 0, failed + 0, skipped + 0 }
    ' "$1")
    local stage_skipped
    read -r stage_passed stage_failed stage_skipped <<<"$counts"
    passed=$((passed + stage_passed))
    failed=$((failed + stage_failed))
    skipped=$((skipped + stage_skipped))
}

summarise() {
    printf '\n== summary\n'
    printf '%s\n' "${summary[@]}"
    printf '%-10s %6d s\n' total "$1"
    printf 'left out, named alone: %s\n' "${named_stages[*]}"
    if [[ -s $logs/skipped ]]; then
        printf '\nskipped:\n'
        sed 's/^/  /' "$logs/skipped"
    fi
    if [[ -s $logs/failed ]]; then
        printf '\nfailed, or unsteady:\n'
        sed 's/^/  /' "$logs/failed"
    fi
    ((${#failed_stages[@]} == 0)) || printf '\nfailed stages: %s\n' "${failed_stages[*]}"
    ((!unsteady)) || printf '\n%d unsteady: failed once, and passed when repeated\n' "$unsteady"
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
}

main "$@"
