/* What the limit programs share: time, loopback sockets, warm files. Any failed call ends the program with a line. */

#ifndef MIRRORLOG_BENCH_COMMON_H
#define MIRRORLOG_BENCH_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024UL * 1024UL)
#define DEADLINE_S 60
#define SOCKET_BYTES (4 * MIB)

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

#define CHECK(call) \
    do { if ((call) < 0) die(#call); } while (0)

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static inline size_t number(const char *text) {
    char *end;
    errno = EINVAL;
    size_t found = strtoull(text, &end, 10);
    if (*end || !*text) die(text);
    return found;
}

/* A child ends with its parent, and nothing outlives the deadline. Returns as fork does. */
static inline pid_t fork_guarded(void) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        alarm(DEADLINE_S);
    }
    return pid;
}

static inline void tune(int fd) {
    int on = 1, bytes = SOCKET_BYTES;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
}

/* Listens on a free loopback port, which goes to *port. */
static inline int listen_loopback(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd);
    CHECK(bind(fd, (struct sockaddr *)&address, size));
    CHECK(listen(fd, 8));
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size));
    *port = ntohs(address.sin_port);
    return fd;
}

static inline int accept_one(int listener) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd);
    tune(fd);
    return fd;
}

static inline int connect_loopback(uint16_t port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd);
    tune(fd);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static inline void send_all(int fd, const void *from, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)from + done, size - done, MSG_NOSIGNAL);
        if (n < 0) die("send");
        done += n;
    }
}

/* 0 when the other side closed before the first byte. */
static inline int receive_all(int fd, void *to, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)to + done, size - done, 0);
        if (n < 0) die("recv");
        if (n == 0 && done == 0) return 0;
        if (n == 0) { errno = ECONNRESET; die("recv"); }
        done += n;
    }
    return 1;
}

/* A file without a name in `directory`, its pages written, flushed and writable in memory. */
static inline char *map_warm_file(const char *directory, size_t size) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/limit-XXXXXX", directory) >= sizeof path) {
        errno = ENAMETOOLONG;
        die(directory);
    }
    int fd = mkstemp(path);
    CHECK(fd);
    CHECK(unlink(path));
    errno = posix_fallocate(fd, 0, size);
    if (errno) die("posix_fallocate");
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) die("mmap");
    memset(map, 1, size);
    CHECK(fdatasync(fd));
    memset(map, 2, size); /* writable again after the flush */
    close(fd);
    return map;
}

/* Private memory, touched. */
static inline char *warm_memory(size_t size, int value) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    memset(memory, value, size);
    return memory;
}

static inline void wait_children(void) {
    int status;
    while (wait(&status) > 0)
        if (status != 0) { fprintf(stderr, "a child process failed\n"); exit(1); }
}

#endif
