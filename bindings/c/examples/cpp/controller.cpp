// A controller: turns the motor, and waits each time until the motor's state says that it has turned.
//
//   controller [BUS]
#include "machine.hpp"

using namespace std::chrono_literals;

int main(int count, char **arguments) {
    const std::string text = configuration("controller", "motor", count > 1 ? arguments[1] : "machine");
    tautline::node node = need(tautline::node::open_text(text.c_str()), "opening the node");
    tautline::queuing_port commands = need(node.queuing({.number = command_port}), "opening port 7");
    tautline::sampling_port states = need(node.sampling({.number = state_port, .refresh_period = 20s}), "opening port 8");
    const tautline::destination motor = need(commands.to("motor", command_port, 20s), "finding the motor");

    std::byte buffer[1484];
    for (const std::int32_t degrees : {30, 60, 90, -1}) {
        need(commands.send(motor, tautline::bytes_of(command{degrees})), "sending a command");
        state seen{};
        while (seen.degrees != degrees) {
            const auto sample = need(states.next(buffer, 20s), "waiting for the state");
            if (!sample || !sample->valid()) {
                std::fputs("controller: no state for 20 s\n", stderr);
                return EXIT_FAILURE;
            }
            seen = sample->as<state>().value_or(state{});
        }
        std::printf("controller: the motor is at %d degrees after %u commands\n", seen.degrees, seen.commands);
    }
    return EXIT_SUCCESS;
}
