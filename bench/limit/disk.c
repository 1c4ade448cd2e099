/* What the disk alone allows: processes that append to a file of their own at once, each chunk synced before the next.

   disk DIRECTORY SECONDS CHUNK_BYTES PROCESSES

   The files are written and flushed beforehand, so a sync has data to write and no metadata. Prints the bytes of one
   process, the slowest: three copies are as fast as the last of them. */

#include "common.h"

#define FILE_BYTES (128 * MIB)

typedef struct { double bytes, seconds; } outcome;

static outcome append(const char *directory, double seconds, size_t chunk, int ready, int go) {
    char path[4096], byte, *source = warm_memory(chunk, 5);
    snprintf(path, sizeof path, "%s/limit-XXXXXX", directory);
    int fd = mkstemp(path);
    CHECK(fd);
    CHECK(unlink(path));
    for (size_t at = 0; at < FILE_BYTES; at += chunk)
        if (pwrite(fd, source, chunk, at) != (ssize_t)chunk) die("pwrite");
    CHECK(fsync(fd));
    CHECK(write(ready, "r", 1));
    if (read(go, &byte, 1) != 0) die("read"); /* closed by the parent for all at once */
    uint64_t bytes = 0;
    double started = now_s();
    for (; now_s() - started < seconds; bytes += chunk) {
        memset(source, (int)(bytes / chunk), 64);
        if (pwrite(fd, source, chunk, bytes % (FILE_BYTES / chunk * chunk)) != (ssize_t)chunk) die("pwrite");
        CHECK(fdatasync(fd));
    }
    return (outcome){bytes, now_s() - started};
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: disk DIRECTORY SECONDS CHUNK_BYTES PROCESSES\n"); return 2; }
    double seconds = atof(argv[2]);
    size_t chunk = number(argv[3]), processes = number(argv[4]);
    if (chunk == 0 || chunk > FILE_BYTES || processes == 0 || processes > 16) {
        fprintf(stderr, "CHUNK_BYTES or PROCESSES is out of range\n");
        return 2;
    }
    int ready[2], go[2], results[2];
    CHECK(pipe(ready));
    CHECK(pipe(go));
    CHECK(pipe(results));
    for (size_t i = 0; i < processes; i++)
        if (fork_guarded() == 0) {
            close(go[1]);
            outcome done = append(argv[1], seconds, chunk, ready[1], go[0]);
            CHECK(write(results[1], &done, sizeof done));
            return 0;
        }
    alarm(DEADLINE_S);
    close(ready[1]);
    close(results[1]);
    char byte;
    for (size_t i = 0; i < processes; i++)
        if (read(ready[0], &byte, 1) != 1) die("a process did not start");
    close(go[1]);
    outcome slowest = {0, 0}, done;
    for (size_t i = 0; i < processes; i++) {
        if (read(results[0], &done, sizeof done) != sizeof done) die("a process did not end well");
        if (i == 0 || done.bytes / done.seconds < slowest.bytes / slowest.seconds) slowest = done;
    }
    wait_children();
    printf("{\"bytes\": %.0f, \"seconds\": %.6f}\n", slowest.bytes, slowest.seconds);
    return 0;
}
