/* The moves of a publish on n + 1 copies, and nothing else: producer -> master -> n mirrors -> acks -> confirm.

   fanout DIRECTORY SECONDS BATCH_BYTES WINDOW MIRRORS

   The master receives a batch into warm memory, copies it into a warm mapped file and sends it from there to each
   mirror; a mirror receives it into its own warm mapped file and acks; once all have acked, the producer gets its
   confirm. WINDOW batches are unconfirmed at most; with a window of 1 this is the round trip, and its percentiles are
   printed. One process and one epoll each, no checksums, no framing. */

#include "common.h"
#include <sys/epoll.h>

#define MIRRORS_MAX 8
#define FILE_BYTES (256 * MIB)
#define SOURCE (64 * MIB)
#define SAMPLES_MAX (1 << 22)

static size_t batch, file_size; /* the file holds whole batches */

static void set_nonblocking(int fd) { CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)); }

/* As much as the socket takes of [*sent, end) of a file that wraps around. */
static void send_some(int fd, const char *file, uint64_t *sent, uint64_t end) {
    while (*sent < end) {
        size_t at = *sent % file_size, size = end - *sent;
        if (size > file_size - at) size = file_size - at;
        ssize_t n = send(fd, file + at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) die("send");
        *sent += n;
    }
}

/* What a mirror has acked: it sends its total as 8 bytes each time, and the last one counts. */
typedef struct {
    uint64_t total;
    size_t held; /* bytes of the next number */
    char part[8];
} acks;

static void read_acks(int fd, acks *of) {
    char bytes[2048];
    for (;;) {
        memcpy(bytes, of->part, of->held);
        ssize_t n = recv(fd, bytes + of->held, sizeof bytes - of->held, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) die("recv");
        if (n == 0) { errno = ECONNRESET; die("mirror"); }
        size_t size = of->held + n;
        if (size >= 8) memcpy(&of->total, bytes + (size / 8 - 1) * 8, 8);
        of->held = size % 8;
        memcpy(of->part, bytes + size / 8 * 8, of->held);
    }
}

static void mirror(uint16_t port, const char *directory, int ready) {
    char *file = map_warm_file(directory, FILE_BYTES);
    uint64_t got = 0, acked = 0;
    int fd = connect_loopback(port);
    CHECK(write(ready, "r", 1));
    for (;;) {
        size_t at = got % file_size;
        ssize_t n = recv(fd, file + at, file_size - at, 0);
        if (n < 0) die("recv");
        if (n == 0) return;
        got += n;
        if (got / batch > acked / batch) {
            acked = got / batch * batch;
            send_all(fd, &acked, 8);
        }
    }
}

static void master(int listener, int producers, int mirrors, const char *directory, int ready) {
    char *file = map_warm_file(directory, FILE_BYTES), *buffer = warm_memory(batch, 0);
    uint64_t end = 0, confirmed = 0, sent[MIRRORS_MAX] = {0};
    acks acked[MIRRORS_MAX] = {0};
    int fds[MIRRORS_MAX], poller = epoll_create1(0);
    size_t held = 0;
    for (int i = 0; i < mirrors; i++) {
        fds[i] = accept_one(listener);
        set_nonblocking(fds[i]);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = i};
        CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &event));
    }
    CHECK(write(ready, "r", 1));
    int producer = accept_one(producers);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = MIRRORS_MAX}, events[MIRRORS_MAX + 1];
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, producer, &event));
    for (;;) {
        int count = epoll_wait(poller, events, MIRRORS_MAX + 1, -1);
        if (count < 0) die("epoll_wait");
        for (int each = 0; each < count; each++) {
            uint32_t who = events[each].data.u32;
            if (who < MIRRORS_MAX) {
                read_acks(fds[who], &acked[who]);
                send_some(fds[who], file, &sent[who], end);
                continue;
            }
            ssize_t n = recv(producer, buffer + held, batch - held, MSG_DONTWAIT);
            if (n == 0) return;
            if (n < 0 && errno != EAGAIN) die("recv");
            held += n > 0 ? n : 0;
            if (held < batch) continue;
            memcpy(file + end % file_size, buffer, batch);
            end += batch, held = 0;
            for (int i = 0; i < mirrors; i++) send_some(fds[i], file, &sent[i], end);
        }
        uint64_t lowest = end;
        for (int i = 0; i < mirrors; i++) lowest = acked[i].total < lowest ? acked[i].total : lowest;
        if (lowest > confirmed) send_all(producer, &lowest, 8), confirmed = lowest;
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static uint64_t next_confirm(int fd) {
    uint64_t total;
    if (!receive_all(fd, &total, 8)) { errno = ECONNRESET; die("master"); }
    return total;
}

static void produce(int fd, double seconds, size_t window) {
    char *source = warm_memory(SOURCE, 3);
    float *samples = (float *)warm_memory(SAMPLES_MAX * sizeof(float), 0);
    uint64_t sent = 0, confirmed = 0, begin_bytes = 0;
    size_t taken = 0, span = SOURCE / batch * batch;
    double warm = seconds / 10, started = now_s(), begin = 0, asked = 0, now;
    while ((now = now_s()) - started < warm + seconds) {
        if (!begin && now - started > warm) begin = now, begin_bytes = confirmed;
        for (; sent - confirmed < window * batch; sent += batch) {
            asked = now_s();
            send_all(fd, source + sent % span, batch);
        }
        confirmed = next_confirm(fd);
        if (window == 1 && begin && taken < SAMPLES_MAX) samples[taken++] = (now_s() - asked) * 1e6;
    }
    printf("{\"bytes\": %lu, \"seconds\": %.6f", confirmed - begin_bytes, now_s() - begin);
    while (confirmed < sent) confirmed = next_confirm(fd);
    if (taken) {
        qsort(samples, taken, sizeof(float), by_size);
        printf(", \"p50_us\": %.1f, \"p99_us\": %.1f, \"p99.9_us\": %.1f", samples[taken / 2],
               samples[taken * 99 / 100], samples[taken * 999 / 1000]);
    }
    printf("}\n");
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: fanout DIRECTORY SECONDS BATCH_BYTES WINDOW MIRRORS\n"); return 2; }
    batch = number(argv[3]);
    size_t window = number(argv[4]), mirrors = number(argv[5]);
    if (batch == 0 || batch > 8 * MIB || window == 0 || window * batch > FILE_BYTES / 4 || mirrors > MIRRORS_MAX) {
        fprintf(stderr, "BATCH_BYTES, WINDOW or MIRRORS is out of range\n");
        return 2;
    }
    file_size = FILE_BYTES / batch * batch;
    uint16_t mirror_port, producer_port;
    int ready[2], mirror_listener = listen_loopback(&mirror_port), producer_listener = listen_loopback(&producer_port);
    CHECK(pipe(ready));
    for (size_t i = 0; i < mirrors; i++)
        if (fork_guarded() == 0) { mirror(mirror_port, argv[1], ready[1]); return 0; }
    if (fork_guarded() == 0) {
        master(mirror_listener, producer_listener, mirrors, argv[1], ready[1]);
        return 0;
    }
    alarm(DEADLINE_S);
    close(ready[1]);
    char byte;
    for (size_t i = 0; i < mirrors + 1; i++)
        if (read(ready[0], &byte, 1) != 1) die("a node did not start");
    int fd = connect_loopback(producer_port);
    produce(fd, atof(argv[2]), window);
    CHECK(shutdown(fd, SHUT_RDWR));
    close(fd);
    wait_children();
    return 0;
}
