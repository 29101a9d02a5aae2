// The messages between controller and motor, the ports they travel to, and the end of a program that cannot go on.
#ifndef MACHINE_HPP
#define MACHINE_HPP

#include <tautline.hpp>

// A command to the motor's queuing port.
struct command {
    std::int32_t turn_to_degrees;
};

// The motor's state, in the controller's sampling port.
struct state {
    std::int32_t degrees;
    std::uint32_t commands;
};

constexpr std::uint16_t command_port = 7;
constexpr std::uint16_t state_port = 8;

// Bus of both programs, by name or by directory, as the text of a node's configuration.
inline std::string configuration(const char *node, const char *peer, const char *bus) {
    return std::string("link = 'vbus'\nbus = '") + bus + "'\nnode = '" + node + "'\n[[neighbour]]\nname = '" + peer +
           "'\n";
}

// The value of a result; without one, the program says why and ends.
template <class T>
T need(tautline::result<T> found, const char *what) {
    if (!found) {
        std::fprintf(stderr, "%s: %s\n", what, found.error().text());
        std::exit(EXIT_FAILURE);
    }
    return *std::move(found);
}

#endif
