// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Tautline from C++20: types that close what they opened, over tautline.h, which this includes.
//
// - Nodes, ports, sockets and send buffers are move-only, and closed when they end. A moved-from one
//   is empty, and calls with it fail with TAUTLINE_ERROR_BAD_HANDLE. handle() is the C handle, for calls of
//   tautline.h; release() gives it up without closing.
// - Nothing throws, and nothing needs run-time type information: each call that can fail returns a result<T>, which has
//   either the value or an error with the sentence that says what happened and what to do.
// - Payloads are std::span<const std::byte>, durations are those of std::chrono, moments those of steady_clock, which
//   is CLOCK_MONOTONIC here.
// - Sending and receiving allocate nothing. Reports, which are std::string, do; without memory the program ends.
//
// Rules for threads are those of tautline.h. Everything is inline: there is no library besides libtautline. Periodic
// loops and tasks are in tautline_tasks.hpp.
#ifndef TAUTLINE_HPP
#define TAUTLINE_HPP

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <type_traits>
#include <utility>

#include "tautline.h"

namespace tautline {

// ---- Errors ---------------------------------------------------------------------------------------------------------

// The reason of a failure. It has its text with it, and outlives later failures.
class [[nodiscard]] error {
public:
    // Longest sentence that is kept, with its closing zero. Lower: remedies are cut off. Higher: each result is larger.
    static constexpr std::size_t text_bytes_max = 512;

    // The calling thread's last failure, which a call has just reported with this code and errno.
    static error last(int code) noexcept {
        error failed(code, errno);
        if (tautline_last_error(failed.text_, sizeof failed.text_) <= 0)
            std::snprintf(failed.text_, sizeof failed.text_, "%s", tautline_code_text(code));
        return failed;
    }

    // One of enum tautline_code; TAUTLINE_ERROR_REFUSED for all failures of sockets, which number() tells apart.
    [[nodiscard]] int code() const noexcept { return code_; }
    // The errno of the failure.
    [[nodiscard]] int number() const noexcept { return number_; }
    // Sentence with names and numbers that says what happened, and what to do.
    [[nodiscard]] const char *text() const noexcept { return text_; }

private:
    error(int code, int number) noexcept : code_(code), number_(number) { text_[0] = 0; }

    int code_;
    int number_;
    char text_[text_bytes_max];
};

// A value, or the error in its place: like std::expected of C++23.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) noexcept : has_value_(true) { std::construct_at(&value_, std::move(value)); }
    result(tautline::error failed) noexcept : has_value_(false) { std::construct_at(&error_, failed); }
    result(result &&other) noexcept : has_value_(other.has_value_) { take(std::move(other)); }
    result(const result &) = delete;
    result &operator=(const result &) = delete;
    result &operator=(result &&other) noexcept {
        if (this != &other) {
            destroy();
            has_value_ = other.has_value_;
            take(std::move(other));
        }
        return *this;
    }
    ~result() { destroy(); }

    [[nodiscard]] bool has_value() const noexcept { return has_value_; }
    explicit operator bool() const noexcept { return has_value_; }

    // The value. Without one, the error is written to standard error and the program ends.
    T &value() & noexcept { return check(), value_; }
    const T &value() const & noexcept { return check(), value_; }
    T value() && noexcept { return check(), std::move(value_); }
    T &operator*() & noexcept { return value(); }
    const T &operator*() const & noexcept { return value(); }
    T operator*() && noexcept { return std::move(*this).value(); }
    T *operator->() noexcept { return &value(); }
    const T *operator->() const noexcept { return &value(); }
    T value_or(T other) && noexcept { return has_value_ ? std::move(value_) : std::move(other); }

    // The error; only if there is no value.
    const tautline::error &error() const noexcept {
        if (has_value_)
            std::abort();
        return error_;
    }

private:
    void check() const noexcept {
        if (has_value_)
            return;
        std::fprintf(stderr, "tautline: %s\n", error_.text());
        std::abort();
    }
    void destroy() noexcept {
        if (has_value_)
            std::destroy_at(&value_);
    }
    void take(result &&other) noexcept {
        if (has_value_)
            std::construct_at(&value_, std::move(other.value_));
        else
            std::construct_at(&error_, other.error_);
    }

    union {
        T value_;
        tautline::error error_;
    };
    bool has_value_;
};

// Success without a value.
struct done {};

namespace detail {

inline result<done> checked(int code) noexcept {
    if (code < 0)
        return error::last(code);
    return done{};
}

// Text of a call that writes as snprintf does: tried with a short buffer, then with one of the length that it
// returned, a little longer because it may have grown.
template <class Call>
result<std::string> text_of(Call &&call) {
    std::string text(512, '\0');
    for (;;) {
        const int bytes = call(text.data(), text.size());
        if (bytes < 0)
            return error::last(bytes);
        const auto length = static_cast<std::size_t>(bytes);
        if (length < text.size()) {
            text.resize(length);
            return text;
        }
        text.assign(length + 512, '\0');
    }
}

// Owner of a handle, which it closes when it ends. Traits name the handle's type, the one that is none, and its close.
template <class Traits>
class unique {
public:
    using handle_type = typename Traits::type;

    unique() noexcept = default;
    explicit unique(handle_type handle) noexcept : handle_(handle) {}
    unique(unique &&other) noexcept : handle_(other.release()) {}
    unique &operator=(unique &&other) noexcept {
        if (this != &other) {
            end();
            handle_ = other.release();
        }
        return *this;
    }
    unique(const unique &) = delete;
    unique &operator=(const unique &) = delete;
    ~unique() { end(); }

    [[nodiscard]] handle_type handle() const noexcept { return handle_; }
    handle_type release() noexcept { return std::exchange(handle_, Traits::none()); }

protected:
    handle_type handle_ = Traits::none();

private:
    void end() noexcept {
        if (Traits::is_some(handle_))
            Traits::close(release());
    }
};

// Handles that are structs with a number, zero for none.
template <class Handle>
struct numbered_handle {
    using type = Handle;
    static Handle none() noexcept { return {}; }
    static bool is_some(Handle handle) noexcept { return handle.id != 0; }
};

struct node_handle : numbered_handle<tautline_node> {
    static void close(tautline_node handle) noexcept { (void)tautline_node_close(handle); }
};

struct socket_handle {
    using type = int;
    static int none() noexcept { return -1; }
    static bool is_some(int handle) noexcept { return handle >= 0; }
    static void close(int handle) noexcept { (void)rt_socket_close(handle); }
};

}  // namespace detail

// ---- Time -----------------------------------------------------------------------------------------------------------

using time_point = std::chrono::steady_clock::time_point;
using std::chrono::nanoseconds;

inline time_point moment(std::uint64_t since_start_ns) noexcept {
    return time_point(nanoseconds(static_cast<std::int64_t>(since_start_ns)));
}

// The clock that dates messages; the same as steady_clock::now().
inline time_point now() noexcept { return moment(tautline_now_ns()); }

// How long a call may wait: until a moment, or for a duration from now on.
class deadline {
public:
    // A moment of the past, zero among them, is one that is not waited for.
    deadline(time_point until) noexcept {
        const auto ns = std::chrono::duration_cast<nanoseconds>(until.time_since_epoch()).count();
        ns_ = ns > 0 ? static_cast<std::uint64_t>(ns) : TAUTLINE_POLL;
    }
    // A duration beyond a hundred years, which nanoseconds may not be able to count, is for ever.
    template <class Rep, class Period>
    deadline(std::chrono::duration<Rep, Period> from_now) noexcept : ns_(TAUTLINE_FOREVER) {
        constexpr double century_s = 3.2e9;
        if (std::chrono::duration<double>(from_now).count() < century_s)
            *this = deadline(now() + std::chrono::duration_cast<nanoseconds>(from_now));
    }

    // Does not wait.
    static deadline poll() noexcept { return deadline(TAUTLINE_POLL); }
    // Waits until there is something.
    static deadline forever() noexcept { return deadline(TAUTLINE_FOREVER); }

    [[nodiscard]] std::uint64_t ns() const noexcept { return ns_; }

private:
    explicit deadline(std::uint64_t ns) noexcept : ns_(ns) {}

    std::uint64_t ns_;
};

// ---- Messages -------------------------------------------------------------------------------------------------------

using payload = std::span<const std::byte>;

// Bytes of a text, or of a value that can be copied bit by bit.
inline payload bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text.data(), text.size())); }
template <class T>
    requires std::is_trivially_copyable_v<T> && (!std::is_convertible_v<const T &, std::string_view>)
payload bytes_of(const T &value) noexcept {
    return std::as_bytes(std::span(&value, 1));
}

// 0 to 7, 7 most urgent; the numbers of 802.1Q.
enum class priority : std::uint8_t {
    lowest = TAUTLINE_PRIORITY_LOWEST,
    normal = TAUTLINE_PRIORITY_NORMAL,
    highest = TAUTLINE_PRIORITY_HIGHEST
};

using source = tautline_source;
// With `struct`: functions have the same names.
using port_counters = struct ::tautline_port_counters;
using port_info = struct ::tautline_port_info;

// The way from one port to one port of a peer. It ends with its port.
class destination {
public:
    explicit destination(tautline_destination handle) noexcept : handle_(handle) {}
    [[nodiscard]] tautline_destination handle() const noexcept { return handle_; }

private:
    tautline_destination handle_;
};

// One message of a batch.
using outgoing = tautline_outgoing;

inline outgoing make_outgoing(payload content, destination to, priority urgency = priority::normal) noexcept {
    outgoing made{};
    made.message = content.data();
    made.bytes = content.size();
    made.destination = to.handle();
    made.priority = static_cast<std::uint8_t>(urgency);
    return made;
}

namespace detail {

template <class Head>
class received {
public:
    received(const std::byte *buffer, const Head &head) noexcept : buffer_(buffer), head_(head) {}

    // In the buffer that was given to the call.
    [[nodiscard]] tautline::payload payload() const noexcept { return {buffer_, head_.bytes}; }
    // A copy of the payload as a value; nothing if it has another size.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    [[nodiscard]] std::optional<T> as() const noexcept {
        if (head_.bytes != sizeof(T))
            return std::nullopt;
        alignas(T) std::byte copy[sizeof(T)];
        std::memcpy(copy, buffer_, sizeof(T));
        return *std::launder(reinterpret_cast<T *>(copy));
    }
    [[nodiscard]] std::string_view text() const noexcept {
        return {reinterpret_cast<const char *>(buffer_), head_.bytes};
    }
    // Number of its first frame in its flow; 0 in plain UDP.
    [[nodiscard]] std::uint32_t sequence() const noexcept { return head_.sequence; }
    [[nodiscard]] time_point arrival() const noexcept { return moment(head_.arrival_ns); }
    // Where an answer goes. Anybody can write anything there.
    [[nodiscard]] const tautline::source &source() const noexcept { return head_.source; }
    [[nodiscard]] tautline::priority priority() const noexcept {
        return static_cast<tautline::priority>(head_.priority);
    }

protected:
    const std::byte *buffer_;
    Head head_;
};

}  // namespace detail

// A message of a queuing port.
using message = detail::received<tautline_message>;

// A value of a sampling port.
class sample : public detail::received<tautline_sample> {
public:
    using received::received;
    [[nodiscard]] nanoseconds age() const noexcept { return nanoseconds(static_cast<std::int64_t>(head_.age_ns)); }
    // Values that came and were replaced since the last read.
    [[nodiscard]] std::uint64_t overwritten() const noexcept { return head_.overwritten; }
    // Whether the age is within the port's refresh period.
    [[nodiscard]] bool valid() const noexcept { return head_.valid != 0; }
    // Whether no read has seen it before.
    [[nodiscard]] bool fresh() const noexcept { return head_.fresh != 0; }
};

// ---- Ports ----------------------------------------------------------------------------------------------------------

// Operations of every port. A view does not own its port: it is a handle, to be copied like a number.
class port_view {
public:
    port_view() noexcept = default;
    explicit port_view(tautline_port handle) noexcept : handle_(handle) {}

    [[nodiscard]] tautline_port handle() const noexcept { return handle_; }

    result<port_info> info() const noexcept {
        port_info found{};
        const int code = tautline_port_info(handle_, &found);
        return filled(code, found);
    }
    result<port_counters> counters() const noexcept {
        port_counters found{};
        const int code = tautline_port_counters(handle_, &found);
        return filled(code, found);
    }
    // A descriptor for poll, select or epoll. It is the port's: take all messages first, then wait; do not close it.
    result<int> descriptor() const noexcept {
        const int found = tautline_descriptor(handle_);
        return filled(found, found);
    }

protected:
    template <class T>
    static result<T> filled(int code, const T &value) noexcept {
        if (code < 0)
            return error::last(code);
        return value;
    }

    // A call that returns 1 for something, 0 for nothing, and fills a struct about the bytes in the buffer.
    template <class Shown, class Head>
    static result<std::optional<Shown>> shown(int code, std::span<std::byte> buffer, const Head &head) noexcept {
        if (code < 0)
            return error::last(code);
        if (code == 0)
            return std::optional<Shown>();
        return std::optional<Shown>(Shown(buffer.data(), head));
    }

    tautline_port handle_{};
};

// Ports that send messages: all but raw ports.
class message_view : public port_view {
public:
    using port_view::port_view;

    // The way to a port of a neighbour. On link vbus it waits until the peer's port is there. Not for the hot path.
    result<destination> to(const char *neighbour, std::uint16_t port, deadline until = deadline::forever()) const noexcept {
        tautline_destination found{};
        const int code = tautline_destination_of(handle_, neighbour, port, until.ns(), &found);
        return filled(code, destination(found));
    }

    // On link vbus, the way to all who follow this port: a message or value is written once, for up to 64 readers. Not
    // for the hot path.
    result<destination> readers() const noexcept {
        tautline_destination found{};
        const int code = tautline_readers_of(handle_, &found);
        return filled(code, destination(found));
    }
    // Reads from now on what a neighbour's port of the same kind sends to its readers. Not for the hot path.
    result<done> follow(const char *neighbour, std::uint16_t publisher) const noexcept {
        return detail::checked(tautline_follow(handle_, neighbour, publisher));
    }

    // Sends a message or value. Never waits.
    result<done> send(destination to, payload content, priority urgency = priority::normal) const noexcept {
        const auto number = static_cast<std::uint8_t>(urgency);
        return detail::checked(tautline_send(handle_, to.handle(), number, content.data(), content.size()));
    }
    // Sends an answer to the sender of a message or value. Waits only for the first answer to a port on a bus.
    result<done> reply(const source &sender, payload content, priority urgency = priority::normal) const noexcept {
        const auto number = static_cast<std::uint8_t>(urgency);
        return detail::checked(tautline_reply(handle_, &sender, number, content.data(), content.size()));
    }
    // Sends up to TAUTLINE_BATCH_MAX messages in their order; the number that were taken, from the first on.
    result<std::size_t> send(std::span<const outgoing> batch) const noexcept {
        const int taken = tautline_send_batch(handle_, batch.data(), batch.size());
        return filled(taken, static_cast<std::size_t>(taken < 0 ? 0 : taken));
    }
};

// Queuing ports, and ports of plain UDP.
class queuing_view : public message_view {
public:
    using message_view::message_view;

    // Takes the most urgent message; nothing if there was none until the deadline. The buffer must hold the port's
    // message_bytes_max.
    result<std::optional<message>> receive(std::span<std::byte> buffer, deadline until) const noexcept {
        tautline_message head{};
        const int code = tautline_receive(handle_, until.ns(), buffer.data(), buffer.size(), &head);
        return shown<message>(code, buffer, head);
    }
};

class sampling_view : public message_view {
public:
    using message_view::message_view;

    // The last value, seen before or not; nothing if there has never been one. Never waits, and is never torn.
    result<std::optional<sample>> read(std::span<std::byte> buffer) const noexcept {
        tautline_sample head{};
        const int code = tautline_read(handle_, buffer.data(), buffer.size(), &head);
        return shown<sample>(code, buffer, head);
    }
    // The next value that was not seen; nothing if there was none until the deadline.
    result<std::optional<sample>> next(std::span<std::byte> buffer, deadline until) const noexcept {
        tautline_sample head{};
        const int code = tautline_next(handle_, until.ns(), buffer.data(), buffer.size(), &head);
        return shown<sample>(code, buffer, head);
    }
};

// Raw ports: whole Ethernet frames of one EtherType.
class raw_view : public port_view {
public:
    using port_view::port_view;

    // Sends a frame of the port's EtherType as it is. Never waits.
    result<done> send(payload whole) const noexcept {
        return detail::checked(tautline_send_frame(handle_, whole.data(), whole.size()));
    }
    // Takes the most urgent frame; nothing if there was none until the deadline. The buffer must hold
    // TAUTLINE_FRAME_BYTES_MAX. A frame has no source and no sequence number.
    result<std::optional<message>> receive(std::span<std::byte> buffer, deadline until) const noexcept {
        tautline_message head{};
        const int code = tautline_receive(handle_, until.ns(), buffer.data(), buffer.size(), &head);
        return shown<message>(code, buffer, head);
    }
};

// A port that is closed when this ends.
template <class View>
class owned : public View {
public:
    owned() noexcept = default;
    explicit owned(tautline_port handle) noexcept : View(handle) {}
    owned(owned &&other) noexcept : View(other.release()) {}
    owned &operator=(owned &&other) noexcept {
        if (this != &other) {
            end();
            this->handle_ = other.release();
        }
        return *this;
    }
    owned(const owned &) = delete;
    owned &operator=(const owned &) = delete;
    ~owned() { end(); }

    result<done> close() noexcept { return detail::checked(tautline_port_close(release())); }
    tautline_port release() noexcept { return std::exchange(this->handle_, tautline_port{}); }

private:
    void end() noexcept {
        if (this->handle_.id != 0)
            tautline_port_close(release());
    }
};

using queuing_port = owned<queuing_view>;
using sampling_port = owned<sampling_view>;
using udp_port = owned<queuing_view>;
using raw_port = owned<raw_view>;

// A wait sleeps at once.
inline constexpr nanoseconds spin_never{-1};

// Options of ports. A port has a name, a number, or both; a port with a name has the options of its entry in the
// configuration, to which these add. Zero is the value of the entry, else the default.
struct queuing_options {
    const char *name = nullptr;
    std::uint16_t number = 0;
    std::uint32_t depth = 0;
    std::uint32_t message_bytes_max = 0;
    nanoseconds spin{0};
    std::uint32_t police_rate = 0;
    std::uint32_t police_burst = 0;
};
struct sampling_options {
    const char *name = nullptr;
    std::uint16_t number = 0;
    nanoseconds refresh_period{0};
    std::uint32_t sources = 0;
    std::uint32_t value_bytes_max = 0;
    nanoseconds spin{0};
    std::uint32_t police_rate = 0;
    std::uint32_t police_burst = 0;
};
struct raw_options {
    const char *name = nullptr;
    std::uint16_t ethertype = 0;
    std::uint32_t depth = 0;
    nanoseconds spin{0};
    std::uint32_t police_rate = 0;
    std::uint32_t police_burst = 0;
};

// ---- Nodes ----------------------------------------------------------------------------------------------------------

class node : public detail::unique<detail::node_handle> {
public:
    // Opens a node with a configuration file, or with a text in the form of one.
    static result<node> open(const char *file) noexcept { return opened(tautline_node_open, file); }
    static result<node> open_text(const char *configuration) noexcept {
        return opened(tautline_node_open_text, configuration);
    }

    using unique::unique;

    // Its ports stay open until they are closed themselves.
    result<done> close() noexcept { return detail::checked(tautline_node_close(release())); }

    // Link, reason for not having a better one, and settings that took effect.
    result<std::string> report() const {
        return detail::text_of([this](char *text, std::size_t bytes) {
            return tautline_node_report(handle_, text, bytes);
        });
    }
    // The whole state as JSON.
    result<std::string> status() const {
        return detail::text_of([this](char *text, std::size_t bytes) {
            return tautline_node_status(handle_, text, bytes);
        });
    }
    result<done> publish_status() const noexcept { return detail::checked(tautline_node_publish_status(handle_)); }
    // Sockets that this process opens from now on belong to this node.
    result<done> use_for_sockets() const noexcept { return detail::checked(tautline_socket_node(handle_)); }

    // Open a port; all its memory is taken here. TAUTLINE_ERROR_WRONG_KIND if the configuration gives the port another
    // kind.
    result<queuing_port> queuing(const queuing_options &options) const noexcept {
        return port<queuing_port>(queuing_in_c(TAUTLINE_QUEUING, options), options);
    }
    result<sampling_port> sampling(const sampling_options &options) const noexcept {
        tautline_port_options in_c{};
        in_c.kind = TAUTLINE_SAMPLING;
        in_c.number = options.number;
        in_c.message_bytes_max = options.value_bytes_max;
        in_c.sources = options.sources;
        in_c.refresh_period_ns = static_cast<std::uint64_t>(options.refresh_period.count());
        return port<sampling_port>(in_c, options);
    }
    // Plain UDP, for peers that do not run Tautline.
    result<udp_port> udp(const queuing_options &options) const noexcept {
        return port<udp_port>(queuing_in_c(TAUTLINE_DATAGRAM, options), options);
    }
    result<raw_port> raw(const raw_options &options) const noexcept {
        tautline_port_options in_c{};
        in_c.kind = TAUTLINE_RAW;
        in_c.number = options.ethertype;
        in_c.depth = options.depth;
        return port<raw_port>(in_c, options);
    }

private:
    template <class Open>
    static result<node> opened(Open how, const char *text) noexcept {
        tautline_node handle{};
        const int code = how(text, &handle);
        if (code < 0)
            return error::last(code);
        return node(handle);
    }

    static tautline_port_options queuing_in_c(std::uint16_t kind, const queuing_options &options) noexcept {
        tautline_port_options in_c{};
        in_c.kind = kind;
        in_c.number = options.number;
        in_c.depth = options.depth;
        in_c.message_bytes_max = options.message_bytes_max;
        return in_c;
    }

    // Opens a port, with the options that all kinds have.
    template <class Port, class Options>
    result<Port> port(tautline_port_options in_c, const Options &options) const noexcept {
        in_c.name = options.name;
        in_c.spin_ns = options.spin < nanoseconds::zero() ? TAUTLINE_SPIN_NEVER : static_cast<std::uint64_t>(options.spin.count());
        in_c.police_rate = options.police_rate;
        in_c.police_burst = options.police_burst;
        tautline_port opened{};
        const int code = tautline_port_open(handle_, &in_c, &opened);
        if (code < 0)
            return error::last(code);
        return Port(opened);
    }
};

// ---- Sockets: the five calls ----------------------------------------------------------------------------------------

// Memory to build messages in, out of the node's pool. What is sent from its beginning is not copied in this process,
// and its content is destroyed by sending. It goes back to the pool when this ends, or when its socket is closed.
class send_buffer {
public:
    send_buffer(int socket, std::span<std::byte> memory) noexcept : socket_(socket), memory_(memory) {}
    send_buffer(send_buffer &&other) noexcept
        : socket_(other.socket_), memory_(std::exchange(other.memory_, std::span<std::byte>())) {}
    send_buffer &operator=(send_buffer &&other) noexcept {
        if (this != &other) {
            end();
            socket_ = other.socket_;
            memory_ = std::exchange(other.memory_, std::span<std::byte>());
        }
        return *this;
    }
    send_buffer(const send_buffer &) = delete;
    send_buffer &operator=(const send_buffer &) = delete;
    ~send_buffer() { end(); }

    [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

private:
    void end() noexcept {
        // After the close of the socket this fails, and the buffer is in the pool already.
        if (memory_.data() != nullptr)
            (void)tautline_socket_unmap(socket_, memory_.data());
    }

    int socket_;
    std::span<std::byte> memory_;
};

// Length of a datagram and its sender.
struct datagram {
    std::size_t bytes;
    sockaddr_in from;
};

// A port of plain UDP with the calls of sockets. It is not a file descriptor.
class udp_socket : public detail::unique<detail::socket_handle> {
public:
    static result<udp_socket> open(const sockaddr_in &local, std::size_t message_bytes_max) noexcept {
        const int handle = rt_socket(as_sockaddr(&local), sizeof local, message_bytes_max);
        if (handle < 0)
            return error::last(TAUTLINE_ERROR_REFUSED);
        return udp_socket(handle);
    }

    using unique::unique;

    result<done> close() noexcept {
        if (rt_socket_close(release()) < 0)
            return error::last(TAUTLINE_ERROR_REFUSED);
        return done{};
    }

    // Features that the five calls lack: deadlines, a descriptor, counters. It is the same object, and ends with this.
    result<queuing_view> port() const noexcept {
        tautline_port found{};
        const int code = tautline_socket_port(handle_, &found);
        if (code < 0)
            return error::last(code);
        return queuing_view(found);
    }

    result<send_buffer> map(std::size_t bytes) const noexcept {
        void *const memory = rt_mmap(handle_, bytes);
        if (memory == MAP_FAILED)
            return error::last(TAUTLINE_ERROR_REFUSED);
        return send_buffer(handle_, {static_cast<std::byte *>(memory), bytes});
    }

    // Sends a datagram; never waits.
    result<done> send_to(payload content, const sockaddr_in &to) const noexcept {
        if (rt_sendto(handle_, content.data(), content.size(), 0, as_sockaddr(&to), sizeof to) < 0)
            return error::last(TAUTLINE_ERROR_REFUSED);
        return done{};
    }

    // Receives the most urgent datagram, and waits for one unless the flags have MSG_DONTWAIT.
    result<datagram> receive_from(std::span<std::byte> buffer, int flags = 0) const noexcept {
        datagram found{};
        socklen_t bytes = sizeof found.from;
        auto *const from = reinterpret_cast<sockaddr *>(&found.from);
        const ssize_t received = rt_recvfrom(handle_, buffer.data(), buffer.size(), flags, from, &bytes);
        if (received < 0)
            return error::last(TAUTLINE_ERROR_REFUSED);
        found.bytes = static_cast<std::size_t>(received);
        return found;
    }

private:
    static const sockaddr *as_sockaddr(const sockaddr_in *address) noexcept {
        return reinterpret_cast<const sockaddr *>(address);
    }
};

// The library's version, such as "0.1.0".
inline const char *version() noexcept { return tautline_version(); }

}  // namespace tautline

#endif
