// The loop of a robot that sends its state over UDP and wants a command soon: awake when the state comes. The other
// side is examples/robot_peer.rs.
//
//   robot_loop 7000            the port to receive at
//   robot_loop 7000 kernel     sleeps as the kernel does, for comparison
#include <arpa/inet.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <tautline_tasks.hpp>

int main(int count, char **arguments) {
    const int port = count > 1 ? std::atoi(arguments[1]) : 7000;
    const bool is_awake = count < 3 || std::string_view(arguments[2]) != "kernel";

    const int udp = ::socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in own{}, robot{};
    own.sin_family = AF_INET;
    own.sin_port = htons(static_cast<std::uint16_t>(port));
    if (udp < 0 || ::bind(udp, reinterpret_cast<sockaddr *>(&own), sizeof own) < 0) {
        std::perror("robot_loop");
        return EXIT_FAILURE;
    }
    auto awake = tautline::awake::open(udp);
    if (!awake)
        return EXIT_FAILURE;
    char state[1500];
    while (!is_awake || awake->wait()) {  // sleeps, and is awake when the state comes
        socklen_t bytes = sizeof robot;
        const ssize_t length = ::recvfrom(udp, state, sizeof state, 0, reinterpret_cast<sockaddr *>(&robot), &bytes);
        if (length <= 0)
            break;
        // Compute the command here.
        (void)::sendto(udp, state, static_cast<std::size_t>(length), 0, reinterpret_cast<sockaddr *>(&robot), bytes);
    }
    return EXIT_SUCCESS;
}
