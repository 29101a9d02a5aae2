// A motor: carries out commands, the most urgent first, and publishes its state. It ends when turned to -1 degrees.
//
//   motor [BUS]
#include "machine.hpp"

using namespace std::chrono_literals;

int main(int count, char **arguments) {
    const std::string text = configuration("motor", "controller", count > 1 ? arguments[1] : "machine");
    tautline::node node = need(tautline::node::open_text(text.c_str()), "opening the node");
    tautline::queuing_port commands = need(node.queuing({.number = command_port, .depth = 16}), "opening port 7");
    tautline::sampling_port states = need(node.sampling({.number = state_port}), "opening port 8");
    std::puts("motor: ready");
    std::fflush(stdout);
    const tautline::destination controller = need(states.to("controller", state_port, 20s), "finding the controller");

    std::byte buffer[1484];
    state now{};
    while (now.degrees >= 0) {
        const auto received = need(commands.receive(buffer, 20s), "receiving");
        if (!received) {
            std::fputs("motor: no command for 20 s\n", stderr);
            return EXIT_FAILURE;
        }
        const auto ordered = received->as<command>();
        if (!ordered)
            continue;
        now = {ordered->turn_to_degrees, now.commands + 1};
        need(states.send(controller, tautline::bytes_of(now), tautline::priority::highest), "publishing the state");
    }
    std::printf("motor: %u commands\n", now.commands);
    return EXIT_SUCCESS;
}
