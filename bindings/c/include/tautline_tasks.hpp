// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Tautline from C++20: periodic loops, waits that end awake and real-time tasks, with the rules of tautline.hpp. Ports
// are there.
#ifndef TAUTLINE_TASKS_HPP
#define TAUTLINE_TASKS_HPP

#include <cstddef>
#include <type_traits>

#include "tautline.hpp"

namespace tautline {

struct cycle_options {
    nanoseconds period;
    std::int32_t cpu = -1;          // the only CPU of the thread; -1 for any
    std::uint8_t fifo_priority = 0; // under SCHED_FIFO, 1 to 99; 0 leaves the policy as it is
    bool lock_memory = false;
    nanoseconds phase{0};               // from the arrival of a peer's value to the start
    std::uint32_t values_per_cycle = 0; // which the cycle follows; 0 for a cycle of its own
};

// One period of a cycle.
class tick {
public:
    explicit tick(const tautline_tick &in_c) noexcept : in_c_(in_c) {}
    [[nodiscard]] std::uint64_t number() const noexcept { return in_c_.number; }
    [[nodiscard]] time_point due() const noexcept { return moment(in_c_.due_ns); }
    [[nodiscard]] nanoseconds late() const noexcept { return nanoseconds(static_cast<std::int64_t>(in_c_.late_ns)); }
    [[nodiscard]] time_point deadline() const noexcept { return moment(in_c_.deadline_ns); }
    [[nodiscard]] std::uint64_t skipped() const noexcept { return in_c_.skipped; }

private:
    tautline_tick in_c_;
};

// The periodic loop of the calling thread, of which there is one; it stops when this ends, in the same thread.
class cycle {
public:
    static result<cycle> start(const cycle_options &options) noexcept {
        tautline_cycle_options in_c{};
        in_c.period_ns = static_cast<std::uint64_t>(options.period.count());
        in_c.cpu = options.cpu;
        in_c.fifo_priority = options.fifo_priority;
        in_c.lock_memory = options.lock_memory ? 1 : 0;
        in_c.phase_ns = static_cast<std::uint64_t>(options.phase.count());
        in_c.values_per_cycle = options.values_per_cycle;
        const int code = tautline_cycle_start(&in_c);
        if (code < 0)
            return error::last(code);
        return cycle();
    }

    cycle(cycle &&other) noexcept : runs_(std::exchange(other.runs_, false)) {}
    cycle &operator=(cycle &&other) noexcept {
        if (this != &other) {
            end();
            runs_ = std::exchange(other.runs_, false);
        }
        return *this;
    }
    cycle(const cycle &) = delete;
    cycle &operator=(const cycle &) = delete;
    ~cycle() { end(); }

    // Sleeps until the next period begins.
    result<tick> wait() noexcept {
        tautline_tick in_c{};
        const int code = tautline_cycle_wait(&in_c);
        if (code < 0)
            return error::last(code);
        return tick(in_c);
    }
    // Tells a cycle that follows values when one arrived, after each read.
    result<done> arrived(time_point at) noexcept {
        return detail::checked(tautline_cycle_arrived(static_cast<std::uint64_t>(at.time_since_epoch().count())));
    }
    result<std::string> report() const { return detail::text_of(tautline_cycle_report); }
    result<done> stop() noexcept {
        runs_ = false;
        return detail::checked(tautline_cycle_stop());
    }

private:
    cycle() noexcept = default;
    void end() noexcept {
        if (std::exchange(runs_, false))
            (void)tautline_cycle_stop();
    }

    bool runs_ = true;
};

namespace detail {

struct awake_handle : numbered_handle<tautline_awake> {
    static void close(tautline_awake handle) noexcept { (void)tautline_awake_close(handle); }
};

}  // namespace detail

// Waits of a descriptor that end awake: wait() before each receive. The descriptor stays the program's, and must stay
// open for as long as this lives.
class awake : public detail::unique<detail::awake_handle> {
public:
    awake() noexcept = default;
    static result<awake> open(int descriptor) noexcept {
        tautline_awake handle{};
        const int code = tautline_awake_open(descriptor, &handle);
        if (code < 0)
            return error::last(code);
        return awake(handle);
    }

    // Whether the descriptor has something to read or an error; false when the time is over.
    result<bool> wait(deadline until = deadline::forever()) noexcept {
        const int found = tautline_awake_wait(handle_, until.ns());
        if (found < 0)
            return error::last(found);
        return found > 0;
    }
    // Before a send to which the peer answers.
    result<done> sent() noexcept { return detail::checked(tautline_awake_sent(handle_)); }
    // Rhythm and counters.
    result<std::string> report() const {
        return detail::text_of([this](char *text, std::size_t bytes) {
            return tautline_awake_report(handle_, text, bytes);
        });
    }

private:
    explicit awake(tautline_awake handle) noexcept : unique(handle) {}
};

// Sleeps until a moment and is awake then; how late it was.
inline nanoseconds sleep_until(deadline moment) noexcept {
    std::uint64_t late_ns = 0;
    (void)tautline_sleep_until(moment.ns(), &late_ns);
    return nanoseconds(static_cast<std::int64_t>(late_ns));
}

// Release of a task, while its function runs.
class job {
public:
    explicit job(const tautline_job &in_c) noexcept : in_c_(in_c) {}
    [[nodiscard]] std::uint64_t number() const noexcept { return in_c_.number; }
    [[nodiscard]] time_point release() const noexcept { return moment(in_c_.release_ns); }
    [[nodiscard]] time_point deadline() const noexcept { return moment(in_c_.deadline_ns); }
    // The message that released the job; empty without data if none did.
    [[nodiscard]] payload message() const noexcept {
        return {static_cast<const std::byte *>(in_c_.message), in_c_.message_bytes};
    }
    // Of that message; without one, the release.
    [[nodiscard]] time_point arrival() const noexcept { return moment(in_c_.arrival_ns); }

private:
    const tautline_job &in_c_;
};

using task_figures = tautline_task_figures;

namespace detail {

struct tasks_handle : numbered_handle<tautline_tasks> {
    // How long the end of a set waits for jobs that run. Lower: an honest long job ends the program. Higher: a job that
    // hangs is found later.
    static constexpr nanoseconds patience = std::chrono::seconds(1);

    // A job that has still not returned would go on with objects that may be gone, so the program ends then, as with a
    // std::thread that was not joined.
    static void close(tautline_tasks handle) noexcept {
        if (tautline_tasks_close(handle, static_cast<std::uint64_t>(patience.count())) > 0) {
            std::fputs("tautline: a task set ended while one of its jobs ran\n", stderr);
            std::abort();
        }
    }
};

}  // namespace detail

// Real-time tasks from a file, whose tasks are callable objects of this program. At its end it waits a second for jobs
// that run, and then ends the program; close() leaves that decision to the caller.
class task_set : public detail::unique<detail::tasks_handle> {
public:
    static result<task_set> open(const char *file) noexcept {
        tautline_tasks handle{};
        const int code = tautline_tasks_open(file, &handle);
        if (code < 0)
            return error::last(code);
        return task_set(handle);
    }

    using unique::unique;

    // Gives a task its code: run(job) is called for each job, in the task's thread. The object is not copied; it must
    // live until the set is closed.
    template <class Run>
        requires std::is_invocable_v<Run &, const job &>
    result<done> code(const char *task, Run &run) const noexcept {
        return given(task, call_run<Run>, nullptr, &run);
    }
    // The same with run.safe(), which sets the outputs to their safe values when the task is stopped.
    template <class Run>
        requires std::is_invocable_v<Run &, const job &>
    result<done> code_with_safe_state(const char *task, Run &run) const noexcept {
        return given(task, call_run<Run>, call_safe<Run>, &run);
    }

    // A port's messages release a task that has `port` in its file. Before the start.
    result<done> messages(const char *task, const port_view &port) const noexcept {
        return detail::checked(tautline_tasks_messages(handle_, task, port.handle()));
    }
    // Starts all tasks on one CPU, or with -1 on any. Flags: 0, or TAUTLINE_WITHOUT_REAL_TIME.
    result<done> start(int cpu, std::uint32_t flags = 0) const noexcept {
        return detail::checked(tautline_tasks_start(handle_, cpu, flags));
    }
    result<done> trigger(const char *task) const noexcept {
        return detail::checked(tautline_tasks_trigger(handle_, task));
    }
    result<done> request_mode(const char *mode) const noexcept {
        return detail::checked(tautline_tasks_request_mode(handle_, mode));
    }
    result<task_figures> figures(const char *task) const noexcept {
        task_figures found{};
        const int code = tautline_tasks_figures(handle_, task, &found);
        if (code < 0)
            return error::last(code);
        return found;
    }
    // Settings that could not be had, each with reason and remedy.
    result<std::string> limits() const {
        return detail::text_of([this](char *text, std::size_t bytes) {
            return tautline_tasks_limits(handle_, text, bytes);
        });
    }
    // Stops the tasks and closes the set; the number of tasks whose job did not return in time.
    result<int> close(nanoseconds patience) noexcept {
        const int left = tautline_tasks_close(release(), static_cast<std::uint64_t>(patience.count()));
        if (left < 0)
            return error::last(left);
        return left;
    }

private:
    template <class Run>
    static void call_run(const tautline_job *released, void *context) {
        (*static_cast<Run *>(context))(job(*released));
    }
    template <class Run>
    static void call_safe(void *context) {
        static_cast<Run *>(context)->safe();
    }
    result<done> given(const char *task, tautline_job_function run, tautline_safe_function safe,
                       void *context) const noexcept {
        return detail::checked(tautline_tasks_code(handle_, task, run, safe, context));
    }
};

}  // namespace tautline

#endif
