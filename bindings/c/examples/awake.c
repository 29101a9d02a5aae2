/* A loop over a socket of its own that is awake when its message comes, without a node: five lines around recv().
 *
 *   awake 5000 1000        messages to receive from UDP port 5000; each is answered
 */
#include <arpa/inet.h>

#include "fail.h"

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "awake PORT MESSAGES\n");
        return EXIT_FAILURE;
    }
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1]))};
    if (udp < 0 || bind(udp, (struct sockaddr *)&own, sizeof own) < 0) {
        perror("awake");
        return EXIT_FAILURE;
    }
    tautline_awake awake;
    if (tautline_awake_open(udp, &awake) < 0)
        fail("opening");
    puts("ready");
    fflush(stdout);

    for (int message = 0; message < atoi(arguments[2]); message++) {
        char state[1500];
        struct sockaddr_in peer;
        socklen_t peer_bytes = sizeof peer;
        if (tautline_awake_wait(awake, TAUTLINE_FOREVER) < 0) /* sleeps, and is awake when the message comes */
            fail("waiting");
        ssize_t bytes = recvfrom(udp, state, sizeof state, 0, (struct sockaddr *)&peer, &peer_bytes);
        if (bytes > 0)
            sendto(udp, state, (size_t)bytes, 0, (struct sockaddr *)&peer, peer_bytes);
    }

    char report[256];
    if (tautline_awake_report(awake, report, sizeof report) < 0)
        fail("reporting");
    puts(report); /* every 1000.0 us, spread 11.8 us; 4927 met awake, ... */
    tautline_awake_close(awake);
    return EXIT_SUCCESS;
}
