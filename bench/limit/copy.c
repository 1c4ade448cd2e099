/* memcpy from one warm memory to another, larger than any cache.

   copy SECONDS */

#include "common.h"

#define SIZE (256 * MIB)

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "usage: copy SECONDS\n"); return 2; }
    alarm(DEADLINE_S);
    double seconds = atof(argv[1]);
    char *from = warm_memory(SIZE, 1), *to = warm_memory(SIZE, 2);
    size_t bytes = 0;
    volatile char sink = 0;
    double started = now_s();
    for (; now_s() - started < seconds; bytes += MIB) {
        memcpy(to + bytes % SIZE, from + bytes % SIZE, MIB);
        sink ^= to[bytes % SIZE];
    }
    printf("{\"bytes\": %zu, \"seconds\": %.6f}\n", bytes, now_s() - started);
    return 0;
}
