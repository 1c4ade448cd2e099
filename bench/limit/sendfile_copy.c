/* Files, copied over loopback by sendfile into another file: the limit of a mirror's catch-up.

   sendfile_copy DIRECTORY new|warm BYTES FILE...

   The receiver reads into a warm buffer of 1 MiB and writes to a file in DIRECTORY, which is removed: a new one, or one
   that is in the page cache already, as the prepared pages of a mirror are. BYTES are copied, or as many as the files
   have. The clock runs from the connection to the last byte's write; nothing is flushed. */

#include "common.h"
#include <sys/sendfile.h>

#define CHUNK MIB

static void write_all(int to, const char *from, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(to, from + done, size - done);
        if (n < 0) die("write");
        done += n;
    }
}

static void receive_file(int listener, int ready, const char *directory, size_t warm) {
    char path[4096], *buffer = warm_memory(CHUNK, 0);
    snprintf(path, sizeof path, "%s/limit-XXXXXX", directory);
    int to = mkstemp(path);
    CHECK(to);
    CHECK(unlink(path));
    for (size_t at = 0; at < warm; at += CHUNK) write_all(to, buffer, CHUNK);
    CHECK(fdatasync(to));
    CHECK(lseek(to, 0, SEEK_SET));
    CHECK(write(ready, "r", 1));
    int fd = accept_one(listener);
    for (;;) {
        ssize_t n = recv(fd, buffer, CHUNK, 0);
        if (n < 0) die("recv");
        if (n == 0) break;
        write_all(to, buffer, n);
    }
    send_all(fd, "e", 1);
}

int main(int argc, char **argv) {
    if (argc < 5) { fprintf(stderr, "usage: sendfile_copy DIRECTORY new|warm BYTES FILE...\n"); return 2; }
    size_t bytes = 0, wanted = number(argv[3]);
    uint16_t port;
    int ready[2], listener = listen_loopback(&port);
    char byte;
    CHECK(pipe(ready));
    if (fork_guarded() == 0) {
        receive_file(listener, ready[1], argv[1], strcmp(argv[2], "warm") == 0 ? wanted : 0);
        return 0;
    }
    close(ready[1]);
    alarm(DEADLINE_S);
    if (read(ready[0], &byte, 1) != 1) die("the receiver did not start");
    double started = now_s();
    int fd = connect_loopback(port);
    for (int i = 4; i < argc; i++) {
        int from = open(argv[i], O_RDONLY);
        if (from < 0) die(argv[i]);
        while (bytes < wanted) {
            ssize_t n = sendfile(fd, from, NULL, wanted - bytes < CHUNK ? wanted - bytes : CHUNK);
            if (n < 0) die("sendfile");
            if (n == 0) break;
            bytes += n;
        }
        close(from);
    }
    CHECK(shutdown(fd, SHUT_WR));
    receive_all(fd, &byte, 1);
    double elapsed = now_s() - started;
    wait_children();
    printf("{\"bytes\": %zu, \"seconds\": %.6f}\n", bytes, elapsed);
    return 0;
}
