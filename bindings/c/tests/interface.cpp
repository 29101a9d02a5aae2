// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Every call of tautline.hpp and tautline_tasks.hpp, on loopback, with what goes wrong. Prints "all as documented".
//
//   interface FILE        a task set: examples/message_task.toml
#include <tautline_tasks.hpp>

#include <arpa/inet.h>
#include <poll.h>

#include <atomic>

using namespace std::chrono_literals;
using namespace tautline;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                               \
            std::exit(EXIT_FAILURE);                                                                                   \
        }                                                                                                              \
    } while (0)

static const char configuration[] = "link = 'udp'\naddress = '127.0.0.9'\n"
                                    "[[neighbour]]\nname = 'self'\nip = '127.0.0.9'\n"
                                    "[[port]]\nname = 'state'\nnumber = 1252\nkind = 'sampling'\n"
                                    "[[port]]\nname = 'commands'\nnumber = 1253\nkind = 'queuing'\n";

static_assert(!std::is_copy_constructible_v<node> && std::is_nothrow_move_constructible_v<node>);
static_assert(!std::is_copy_constructible_v<queuing_port> && std::is_nothrow_move_assignable_v<queuing_port>);
static_assert(!std::is_copy_constructible_v<udp_socket> && !std::is_copy_constructible_v<send_buffer>);
static_assert(!std::is_copy_constructible_v<awake> && std::is_nothrow_move_constructible_v<awake>);
static_assert(!std::is_copy_constructible_v<cycle> && !std::is_copy_constructible_v<task_set>);
static_assert(std::is_trivially_copyable_v<queuing_view> && std::is_trivially_copyable_v<destination>);

static std::byte buffer[2048];

static void errors_have_their_sentence() {
    const auto wrong = node::open_text("link = 'pigeon'\n");
    CHECK(!wrong && wrong.error().code() == TAUTLINE_ERROR_CONFIG_WRONG && wrong.error().number() == EINVAL);
    CHECK(std::strstr(wrong.error().text(), "pigeon") != nullptr);
    const auto missing = node::open("/nonexistent/tautline.toml");
    CHECK(!missing && missing.error().code() == TAUTLINE_ERROR_CONFIG_UNREADABLE);
    // An empty one, and one that was moved from.
    node empty;
    CHECK(empty.report().error().code() == TAUTLINE_ERROR_BAD_HANDLE);
    CHECK(empty.close().error().code() == TAUTLINE_ERROR_BAD_HANDLE);
    CHECK(*node::open_text("nonsense").error().text() != 0);
}

static void nodes_and_ports_are_moved_and_closed() {
    node first = *node::open_text(configuration);
    node second = std::move(first);
    CHECK(!first.report() && second.report().value().find("udp") != std::string::npos);
    CHECK(second.status().value().front() == '{');
    CHECK(second.publish_status());
    {
        queuing_port port = *second.queuing({.number = 1250});
        CHECK(second.queuing({.number = 1250}).error().code() == TAUTLINE_ERROR_PORT_TAKEN);
        queuing_port other = std::move(port);
        CHECK(!port.info() && other.info()->number == 1250);
        port = std::move(other);
        CHECK(port.info()->kind == TAUTLINE_QUEUING && port.info()->message_bytes_max == 1484);
    }
    queuing_port again = *second.queuing({.number = 1250, .depth = 4, .message_bytes_max = 3000, .spin = 10us});
    CHECK(again.info()->message_bytes_max == 3000);
    CHECK(again.close() && !again.close());
    const tautline_port raw = second.queuing({.number = 1250})->release();
    CHECK(tautline_port_close(raw) == 0);
    CHECK(second.queuing({.depth = 2}).error().code() == TAUTLINE_ERROR_BAD_OPTIONS);
    CHECK(second.queuing({.name = "state"}).error().code() == TAUTLINE_ERROR_WRONG_KIND);
    CHECK(second.queuing({.name = "nobody"}).error().code() == TAUTLINE_ERROR_UNKNOWN_NAME);
    CHECK(second.sampling({.name = "state", .number = 7}).error().code() == TAUTLINE_ERROR_BAD_OPTIONS);
    CHECK(second.queuing({.name = "commands"}) && second.sampling({.name = "state"}));
    CHECK(second.close());
}

struct position {
    std::int32_t x, y;
};

static void messages_come_by_urgency() {
    node own = *node::open_text(configuration);
    queuing_port motor = *own.queuing({.name = "commands"}), sender = *own.queuing({.number = 1251});
    const destination to = *sender.to("self", 1253);
    CHECK(sender.to("stranger", 1).error().code() == TAUTLINE_ERROR_UNKNOWN_PEER);
    CHECK(sender.to("self", 1253, 1s));
    CHECK(!*motor.receive(buffer, deadline::poll()) && !*motor.receive(buffer, now() - 1s));
    CHECK(sender.send(to, bytes_of("slow"), priority::lowest));
    const position where{3, -4};
    CHECK(sender.send(to, bytes_of(where), priority::highest));
    const outgoing batch[] = {make_outgoing(bytes_of("one"), to), make_outgoing(bytes_of("two"), to)};
    CHECK(*sender.send(batch) == 2);
    CHECK(sender.send(to, payload(buffer, 0), static_cast<priority>(9)).error().code() == TAUTLINE_ERROR_BAD_ARGUMENT);

    const auto urgent = *motor.receive(buffer, 5s);
    CHECK(urgent && urgent->priority() == priority::highest && urgent->as<position>()->y == -4);
    CHECK(!urgent->as<std::int64_t>() || sizeof(position) == sizeof(std::int64_t));
    CHECK(!urgent->as<char>());
    CHECK(now() - urgent->arrival() < 60s && urgent->sequence() == 1 && urgent->source().port == 1251);
    CHECK((*motor.receive(buffer, std::chrono::hours::max()))->text() == "one");
    CHECK((*motor.receive(buffer, now() + 5s))->text() == "two");
    const auto slow = *motor.receive(buffer, deadline::forever());
    CHECK(slow->text() == "slow" && slow->payload().size() == 4);

    CHECK(motor.reply(slow->source(), bytes_of("done")));
    CHECK((*sender.receive(buffer, 5s))->text() == "done");
    CHECK(motor.receive(std::span(buffer, 8), 0s).error().code() == TAUTLINE_ERROR_BUFFER_TOO_SMALL);
    CHECK(motor.counters()->received == 4 && sender.counters()->sent == 4);

    pollfd waits{*motor.descriptor(), POLLIN, 0};
    CHECK(!*motor.receive(buffer, deadline::poll()));
    CHECK(sender.send(to, bytes_of("wake")));
    CHECK(poll(&waits, 1, 5000) == 1 && (*motor.receive(buffer, 0s))->text() == "wake");
}

static void values_have_age_and_validity() {
    node own = *node::open_text(configuration);
    sampling_port state = *own.sampling({.name = "state"});
    sampling_port other = *own.sampling({.number = 1254, .refresh_period = 1ns, .spin = 1us});
    queuing_port sender = *own.queuing({.number = 1251});
    CHECK(!*state.read(buffer) && !*state.next(buffer, 1ms));
    for (int value = 0; value < 2; value++)
        CHECK(sender.send(*sender.to("self", 1252), bytes_of(value)));
    auto last = *state.next(buffer, 5s);
    while (last->as<int>() != 1)
        last = *state.next(buffer, 5s);
    CHECK(last->fresh() && last->age() < 60s && last->overwritten() <= 1);
    CHECK(!(*state.read(buffer))->fresh());
    CHECK(sender.send(*sender.to("self", 1254), bytes_of("x")));
    CHECK(*other.next(buffer, 5s) && !(*other.read(buffer))->valid());
}

static void a_value_for_many_readers_is_published_once() {
    char text[128];
    std::snprintf(text, sizeof text, "link = 'vbus'\nbus = '/tmp/taut-cpp-%ld'\nnode = 'self'\n[[neighbour]]\nname = 'self'\n",
                  static_cast<long>(getpid()));
    node own = *node::open_text(text);
    sampling_port camera = *own.sampling({.number = 5}), left = *own.sampling({.number = 6}), right = *own.sampling({.number = 7});
    const destination readers = *camera.readers();
    CHECK(camera.send(readers, bytes_of("picture")));
    for (sampling_port *screen : {&left, &right}) {
        CHECK(screen->follow("self", 5));
        CHECK((*screen->next(buffer, 5s))->text() == "picture");
    }
    CHECK(left.follow("nobody", 5).error().code() == TAUTLINE_ERROR_UNKNOWN_PEER);
    node plain = *node::open_text(configuration);
    sampling_port alone = *plain.sampling({.name = "state"});
    CHECK(alone.readers().error().code() == TAUTLINE_ERROR_NOT_OFFERED);
}

static void a_message_for_many_readers_is_published_once() {
    char text[128];
    std::snprintf(text, sizeof text, "link = 'vbus'\nbus = '/tmp/taut-cpq-%ld'\nnode = 'self'\n[[neighbour]]\nname = 'self'\n",
                  static_cast<long>(getpid()));
    node own = *node::open_text(text);
    queuing_port events = *own.queuing({.number = 5}), log = *own.queuing({.number = 6});
    const destination readers = *events.readers();
    CHECK(log.follow("self", 5));
    CHECK(events.send(readers, bytes_of("closed")));
    const auto closed = *log.receive(buffer, 5s);
    CHECK(closed->text() == "closed" && closed->source().form == TAUTLINE_BUS);
    CHECK(log.reply(closed->source(), bytes_of("seen")));
    CHECK((*events.receive(buffer, 5s))->text() == "seen");
    CHECK(log.counters()->overwritten == 0);
}

static void plain_udp_and_sockets() {
    node own = *node::open_text(configuration);
    CHECK(own.use_for_sockets());
    udp_port port = *own.udp({.number = 15681});
    sockaddr_in local{}, peer{};
    local.sin_family = peer.sin_family = AF_INET;
    local.sin_addr.s_addr = peer.sin_addr.s_addr = inet_addr("127.0.0.9");
    local.sin_port = htons(15680);
    peer.sin_port = htons(15681);
    udp_socket one = *udp_socket::open(local, 1400);
    CHECK(udp_socket::open(local, 1400).error().number() == EADDRINUSE);
    CHECK(udp_socket::open(local, 0).error().number() == EINVAL);
    {
        send_buffer memory = *one.map(1000);
        std::memcpy(memory.memory().data(), "lent", 4);
        send_buffer moved = std::move(memory);
        CHECK(memory.memory().empty() && moved.memory().size() == 1000);
        CHECK(one.send_to(moved.memory().first(4), peer));
    }
    const auto received = *port.receive(buffer, 5s);
    CHECK(received->text() == "lent" && ntohs(received->source().udp_port) == 15680);
    CHECK(port.reply(received->source(), bytes_of("answer")));
    const datagram answer = *one.receive_from(buffer);
    CHECK(answer.bytes == 6 && ntohs(answer.from.sin_port) == 15681);
    CHECK(one.receive_from(buffer, MSG_DONTWAIT).error().number() == EAGAIN);
    const queuing_view same = *one.port();
    CHECK(same.counters()->sent == 1 && !*same.receive(buffer, 1ms));
    udp_socket two = std::move(one);
    CHECK(one.map(1).error().number() == EBADF && two.handle() >= 0);
    CHECK(two.close() && !two.close() && !same.info());
}

static void raw_frames_are_not_on_every_link() {
    node own = *node::open_text(configuration);
    CHECK(own.raw({.ethertype = 0x88a4}).error().code() == TAUTLINE_ERROR_NOT_OFFERED);
    CHECK(own.raw({.ethertype = 0x0800}).error().code() == TAUTLINE_ERROR_BAD_OPTIONS);
    CHECK(own.raw({.name = "nobody"}).error().code() == TAUTLINE_ERROR_UNKNOWN_NAME);
    raw_port none;
    CHECK(none.send(bytes_of("frame")).error().code() == TAUTLINE_ERROR_BAD_HANDLE);
    CHECK(none.receive(buffer, 0ms).error().code() == TAUTLINE_ERROR_BAD_HANDLE);
}

static void a_cycle_ends_with_its_object() {
    {
        cycle loop = *cycle::start({.period = 1ms});
        CHECK(cycle::start({.period = 1ms}).error().code() == TAUTLINE_ERROR_WRONG_ORDER);
        const tick first = *loop.wait();
        CHECK(first.number() >= 1 && first.deadline() > first.due() && first.late() >= 0ns);
        CHECK(first.skipped() < first.number());
        CHECK(loop.report()->find("1ms") != std::string::npos);
    }
    cycle again = *cycle::start({.period = 1ms});
    CHECK(again.stop() && !again.stop());
    CHECK(cycle::start({.period = 1ns}).error().code() == TAUTLINE_ERROR_BAD_ARGUMENT);
}

static void a_wait_that_ends_awake_is_an_object() {
    int ends[2];
    CHECK(pipe(ends) == 0);
    {
        awake waiting = *awake::open(ends[0]);
        CHECK(!*waiting.wait(1ms) && !*waiting.wait(deadline::poll()));
        CHECK(write(ends[1], "x", 1) == 1 && *waiting.wait());
        awake moved = std::move(waiting);
        CHECK(waiting.sent().error().code() == TAUTLINE_ERROR_BAD_HANDLE && moved.sent());
        CHECK(moved.report()->find("no rhythm") == 0);
    }
    CHECK(write(ends[1], "y", 1) == 1);  // the descriptor is still open
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(awake::open(-1).error().number() == EBADF);
    const time_point due = std::chrono::steady_clock::now() + 1ms;
    CHECK(sleep_until(due) >= 0ns && std::chrono::steady_clock::now() >= due);
}

struct carry_out {
    std::atomic<int> jobs{0};
    std::size_t bytes = 0;
    void operator()(const job &released) {
        bytes = released.message().size();
        if (released.deadline() > released.release() && released.number() > 0)
            jobs++;
    }
    void safe() {}
};

static void tasks_are_objects(const char *file) {
    node own = *node::open_text(configuration);
    queuing_port commands = *own.queuing({.number = 1255}), sender = *own.queuing({.number = 1251});
    carry_out run;
    std::atomic<int> rounds{0};
    auto control = [&rounds](const job &) { rounds++; };

    CHECK(task_set::open("/nonexistent.toml").error().code() == TAUTLINE_ERROR_CONFIG_WRONG);
    task_set tasks = *task_set::open(file);
    CHECK(tasks.messages("command", commands) && tasks.code_with_safe_state("command", run));
    CHECK(tasks.code("control", control) && !tasks.code("nobody", control));
    CHECK(tasks.trigger("command").error().code() == TAUTLINE_ERROR_WRONG_ORDER);
    CHECK(tasks.start(-1, TAUTLINE_WITHOUT_REAL_TIME));
    CHECK(tasks.limits());
    CHECK(sender.send(*sender.to("self", 1255), bytes_of("turn")));
    for (int looks = 0; (run.jobs == 0 || rounds == 0) && looks < 2000; looks++)
        poll(nullptr, 0, 10);
    CHECK(run.jobs == 1 && run.bytes == 4 && rounds > 0);
    CHECK(tasks.figures("control")->jobs > 0);
    CHECK(!tasks.request_mode("no such mode"));
    task_set moved = std::move(tasks);
    CHECK(!tasks.figures("control") && moved.handle().id != 0);
    CHECK(*moved.close(10s) == 0);
    // Ends by itself.
    task_set never_started = *task_set::open(file);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && *version() != 0);
    errors_have_their_sentence();
    nodes_and_ports_are_moved_and_closed();
    messages_come_by_urgency();
    values_have_age_and_validity();
    a_value_for_many_readers_is_published_once();
    a_message_for_many_readers_is_published_once();
    plain_udp_and_sockets();
    raw_frames_are_not_on_every_link();
    a_cycle_ends_with_its_object();
    a_wait_that_ends_awake_is_an_object();
    tasks_are_objects(arguments[1]);
    std::puts("all as documented");
    return EXIT_SUCCESS;
}
