// Answers raw frames in C++, for tests/programs: the port is named `fieldbus` in the configuration.
#include <algorithm>
#include <array>

#include "tautline.hpp"

using namespace std::chrono_literals;

int main(int, char **arguments) {
    tautline::node node = *tautline::node::open(arguments[1]);
    // A port of another kind is not taken for a raw one.
    if (node.queuing({.name = "fieldbus"}).error().code() != TAUTLINE_ERROR_WRONG_KIND)
        return EXIT_FAILURE;
    tautline::raw_port port = *node.raw({.name = "fieldbus"});
    if (port.info()->number != 0x88b4 || port.info()->kind != TAUTLINE_RAW)
        return EXIT_FAILURE;
    std::puts("answering");
    std::fflush(stdout);
    std::array<std::byte, TAUTLINE_FRAME_BYTES_MAX> buffer;
    for (int answered = 0; answered < 5; answered++) {
        const std::optional<tautline::message> question = *port.receive(buffer, 20s);
        if (!question || question->priority() != tautline::priority::lowest || question->arrival() > tautline::now())
            return EXIT_FAILURE;
        std::swap_ranges(buffer.begin(), buffer.begin() + 6, buffer.begin() + 6);
        (void)*port.send(question->payload());
        // Not of the port's EtherType.
        if (port.send(question->payload().first(13)).error().code() != TAUTLINE_ERROR_BAD_ARGUMENT)
            return EXIT_FAILURE;
    }
    const auto counters = port.counters();
    std::printf("%d received, %d sent, %d not\n", static_cast<int>(counters->received),
                static_cast<int>(counters->sent), static_cast<int>(counters->send_errors));
    return EXIT_SUCCESS;
}
