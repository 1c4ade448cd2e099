/* One stream over loopback: the limit of a node without mirrors.

   stream DIRECTORY SECONDS bare|store

   Writes of 256 KiB from warm memory, received into a warm buffer. With `store` the receiver also does what a log
   does with them: a CRC-32C (where the processor has it) and a copy into a warm mapped file. */

#include "common.h"

#define CHUNK (256 * KIB)
#define SOURCE (64 * MIB)
#define STORED (512 * MIB)

static uint32_t crc32c(const char *bytes, size_t size) {
    uint64_t crc = ~0u;
#ifdef __SSE4_2__
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
#else
    (void)bytes, (void)size;
#endif
    return ~(uint32_t)crc;
}

static void serve(int listener, int go, const char *directory, int store) {
    char *buffer = warm_memory(CHUNK, 0), *file = store ? map_warm_file(directory, STORED) : NULL;
    volatile uint32_t checksum = 0;
    CHECK(write(go, "g", 1));
    int fd = accept_one(listener);
    for (size_t at = 0; receive_all(fd, buffer, CHUNK); at = (at + CHUNK) % STORED) {
        if (!store) continue;
        checksum ^= crc32c(buffer, CHUNK);
        memcpy(file + at, buffer, CHUNK);
    }
    /* The sender's clock ends when the last byte has arrived, not when it has been written to the socket. */
    send_all(fd, "e", 1);
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: stream DIRECTORY SECONDS bare|store\n"); return 2; }
    double seconds = atof(argv[2]);
    uint16_t port;
    int ready[2], listener = listen_loopback(&port);
    char byte;
    CHECK(pipe(ready));
    if (fork_guarded() == 0) {
        serve(listener, ready[1], argv[1], strcmp(argv[3], "store") == 0);
        return 0;
    }
    close(ready[1]);
    alarm(DEADLINE_S);
    char *source = warm_memory(SOURCE, 3);
    if (read(ready[0], &byte, 1) != 1) die("the receiver did not start");
    int fd = connect_loopback(port);
    size_t sent = 0;
    double started = now_s();
    for (; now_s() - started < seconds; sent += CHUNK) send_all(fd, source + sent % SOURCE, CHUNK);
    CHECK(shutdown(fd, SHUT_WR));
    receive_all(fd, &byte, 1);
    double elapsed = now_s() - started;
    wait_children();
    printf("{\"bytes\": %zu, \"seconds\": %.6f}\n", sent, elapsed);
    return 0;
}
