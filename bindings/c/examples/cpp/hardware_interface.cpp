// A hardware interface without ROS, and an arm that goes where it is told: both on one bus, in one process. In place of
// the controller manager, a loop calls read() and write().
//
//   hardware_interface [BUS]
#include "hardware_interface.hpp"

#include <fstream>
#include <thread>

#include "machine.hpp"

using namespace std::chrono_literals;

constexpr std::uint16_t arm_port = 9;
constexpr int cycles = 1000;

// Configuration of the hardware interface's node: its port `state`, with a validity of 20 ms, and the neighbour.
static std::string written_configuration(const std::string &bus) {
    const std::string file = bus + "/hardware_interface.toml";
    std::ofstream(file) << configuration("ros2_control", "arm", bus.c_str())
                        << "[[port]]\nname = 'state'\nnumber = 8\nkind = 'sampling'\nrefresh_period_us = 20000\n";
    return file;
}

static void expect(bool is_so, const char *what) {
    if (is_so)
        return;
    std::fprintf(stderr, "hardware interface: %s\n", what);
    std::exit(EXIT_FAILURE);
}

int main(int count, char **arguments) {
    const std::string bus = count > 1 ? arguments[1] : "machine";
    const std::string text = configuration("arm", "ros2_control", bus.c_str());
    tautline::node arm = need(tautline::node::open_text(text.c_str()), "opening the arm's node");
    tautline::sampling_port commands = need(arm.sampling({.number = arm_port}), "opening the arm's port");

    arm_ports ports;
    const std::string failed = ports.open(written_configuration(bus).c_str(), "arm", arm_port, 20s);
    expect(failed.empty(), failed.c_str());
    const tautline::destination interface = need(commands.to("ros2_control", 8, 20s), "finding the interface");

    joint_state seen{};
    expect(ports.read(seen) == look::stale, "a state before there is one");
    std::byte buffer[1484];
    joint_command wanted{};
    for (int cycle = 0; cycle < cycles; ++cycle) {
        wanted.position[0] = cycle;
        expect(ports.write(wanted), "a command was not taken");
        // The arm: where it is told to be, at once.
        const auto ordered = need(commands.read(buffer), "reading the command");
        expect(ordered && ordered->as<joint_command>(), "no command");
        const joint_state state{static_cast<std::uint64_t>(cycle), ordered->as<joint_command>()->position, {}};
        need(commands.send(interface, tautline::bytes_of(state), tautline::priority::highest), "publishing the state");
        const look looked = ports.read(seen);
        // A machine that stood still for 20 ms makes a state stale, and nothing else may.
        expect(looked == look::value || looked == look::stale, "a look failed");
        expect(looked == look::stale || seen.position[0] == cycle, "another state");
    }
    std::this_thread::sleep_for(50ms);
    expect(ports.read(seen) == look::stale, "an old state is stale");
    ports.close();
    std::printf("hardware interface: %d cycles, stale before the first and after the last\n", cycles);
    return EXIT_SUCCESS;
}
