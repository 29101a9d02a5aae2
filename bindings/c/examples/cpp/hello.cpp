#include <tautline.hpp>

int main(int, char **arguments) {  // FILE PEER
    const tautline::node node = *tautline::node::open(arguments[1]);
    const tautline::queuing_port port = *node.queuing({.name = "hello"});
    const tautline::destination peer = *port.to(arguments[2], 7);
    (void)*port.send(peer, tautline::bytes_of("hello from C++"));
    std::byte buffer[1484];
    const auto message = *port.receive(buffer, tautline::deadline::forever());
    std::printf("%.*s\n", static_cast<int>(message->text().size()), message->text().data());
}
