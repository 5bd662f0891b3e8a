/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_open.c - rendezvous of processes, and what protects it from unrelated processes and
 * mistakes.
 */
#include "config.h" /* GNU extensions: RTLD_NEXT */

#include "cmocka_all.h"
#include "comm_group.h"
#include "deny_memfd.h"
#include "scratch.h"

#include "base/clock.h"
#include "comm/rendezvous.h"
#include "wire/acceptor.h"
#include "wire/tcp.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* ---- processes that open a comm ------------------------------------------------------------------ */

static const int64_t LONG_NS = 20 * DP_NS_PER_S, SHORT_NS = 300 * DP_NS_PER_MS;

struct rank {
    int rank, size, port;
    const void *arg;
};
typedef int (*open_fn)(const struct rank *r);

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: rank %d: not so: %s (last error: %s)\n", __FILE__, __LINE__, r->rank,   \
                   #condition, dp_last_error());                                                   \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)
#define EXPECT_SAYS(sentence) EXPECT(strstr(dp_last_error(), sentence))

static pid_t start_rank(int rank, int size, int port, open_fn fn, const void *arg)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int result = fn(&(struct rank){.rank = rank, .size = size, .port = port, .arg = arg});
        fflush(NULL);
        _exit(result ? 1 : 0);
    }
    return child;
}

static int wait_for(pid_t child)
{
    int status = -1;

    waitpid(child, &status, 0);
    return status;
}

/* Start ranks 0 to count - 1 of a group of `size`; all must return 0. */
static void run_some(int count, int size, open_fn fn, const void *arg)
{
    const int port = find_free_port();
    pid_t children[16];
    int failed = 0;

    for (int i = 0; i < count; i++)
        children[i] = start_rank(i, size, port, fn, arg);
    for (int i = 0; i < count; i++)
        failed += wait_for(children[i]) != 0;
    assert_int_equal(failed, 0);
}

static int try_open(const struct rank *r, struct dp_comm_config config, struct dp_comm **comm)
{
    static char address[64];

    config.rank = r->rank;
    config.size = r->size;
    if (!config.address) {
        snprintf(address, sizeof(address), "localhost:%d", r->port);
        config.address = address;
    }
    if (!config.timeout_ns)
        config.timeout_ns = LONG_NS;
    return dp_comm_open(&config, comm);
}

static int open_and_meet(const struct rank *r)
{
    struct dp_comm *comm;

    EXPECT(!try_open(r, (struct dp_comm_config){.secret = r->arg}, &comm));
    EXPECT(dp_comm_rank(comm) == r->rank && dp_comm_size(comm) == r->size);
    EXPECT(!dp_comm_barrier(comm));
    dp_comm_close(comm);
    return 0;
}

/* Rank 1 alone is in a sandbox: each rank connects by what it has. */
static int open_in_sandbox(const struct rank *r)
{
    return r->rank == 1 && !deny_memfd() ? 0 : open_and_meet(r);
}

CASE(a_rank_that_may_share_no_memory_connects_by_tcp)
{
    const pid_t child = fork();

    if (!child)
        _exit(!deny_memfd());
    if (wait_for(child))
        skip_because("this process may not filter its system calls");
    run_some(4, 4, open_in_sandbox, NULL);
}

CASE(ranks_find_each_other_with_and_without_a_secret)
{
    run_some(4, 4, open_and_meet, NULL);
    run_some(4, 4, open_and_meet, "what only we know");
    run_some(1, 1, open_and_meet, NULL);
}

/* ---- rendezvous other than by address -------------------------------------------------------- */

/* A socket that listens on the loopback, and its port. */
static int listen_somewhere(int *port)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(any);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&any, len) || listen(fd, 16) ||
        getsockname(fd, (struct sockaddr *)&any, &len))
        abort();
    *port = ntohs(any.sin_port);
    return fd;
}

static int meet(const struct rank *r, const struct dp_comm_config *config)
{
    struct dp_comm *comm;

    EXPECT(!dp_comm_open(config, &comm));
    EXPECT(dp_comm_rank(comm) == r->rank);
    EXPECT(!dp_comm_barrier(comm));
    dp_comm_close(comm);
    return 0;
}

struct handed_over {
    int fd, port;
};

static int open_with_listener(const struct rank *r)
{
    const struct handed_over *h = r->arg;
    char address[32];

    snprintf(address, sizeof(address), "127.0.0.1:%d", h->port);
    if (r->rank)
        close(h->fd);
    return meet(r, &(struct dp_comm_config){.rank = r->rank, .size = r->size,
                                            .address = r->rank ? address : NULL,
                                            .timeout_ns = LONG_NS,
                                            .listener = r->rank ? 0 : h->fd});
}

CASE(a_socket_that_listens_already_can_be_handed_over)
{
    struct handed_over h;

    h.fd = listen_somewhere(&h.port);
    run_some(3, 3, open_with_listener, &h);
    close(h.fd);
}

/* A store of files in a folder. */
static int file_put(void *user, const char *key, const void *value, size_t len)
{
    char path[256], part[256];

    snprintf(path, sizeof(path), "%s/value", (const char *)user);
    snprintf(part, sizeof(part), "%s/part", (const char *)user);
    FILE *f = fopen(part, "w");
    if (!f || fwrite(value, 1, len, f) != len || fclose(f) || rename(part, path))
        return DP_EIO;
    return 0;
}

static int file_get(void *user, const char *key, void *value, size_t *len)
{
    char path[256];

    if (strcmp(key, "job 7/rendezvous"))
        return DP_EINVAL;
    snprintf(path, sizeof(path), "%s/value", (const char *)user);
    FILE *f = fopen(path, "r");
    if (!f)
        return DP_EAGAIN;
    *len = fread(value, 1, *len, f);
    fclose(f);
    return 0;
}

static int open_with_store(const struct rank *r)
{
    char *folder = (char *)(uintptr_t)r->arg;
    const struct dp_comm_store store = {
        .user = folder, .put = file_put, .get = file_get, .prefix = "job 7"};
    int port, fd = r->rank || r->size == 2 ? 0 : listen_somewhere(&port);

    return meet(r, &(struct dp_comm_config){.rank = r->rank, .size = r->size, .timeout_ns = LONG_NS,
                                            .listener = fd, .store = &store});
}

CASE(ranks_can_meet_by_the_users_store)
{
    char folder[SCRATCH_LEN], path[SCRATCH_LEN + 8];

    assert_true(scratch_directory(folder, "store"));
    snprintf(path, sizeof(path), "%s/value", folder);
    for (int size = 2; size <= 3; size++) {
        run_some(size, size, open_with_store, folder);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static int never(void *user, const char *key, void *value, size_t *len)
{
    return DP_EAGAIN;
}

static int broken(void *user, const char *key, void *value, size_t *len)
{
    return DP_EIO;
}

static int refuse_put(void *user, const char *key, const void *value, size_t len)
{
    return DP_EIO;
}

CASE(stores_and_sockets_that_will_not_do_are_named)
{
    struct dp_comm *comm;
    struct dp_comm_store store = {.put = refuse_put, .get = never};
    struct dp_comm_config config = {.rank = 1, .size = 2, .timeout_ns = SHORT_NS, .store = &store};
    int pair[2];

    assert_int_equal(dp_comm_open(&config, &comm), DP_ETIMEDOUT);
    assert_non_null(strstr(dp_last_error(), "no address in the store (dualpipe/rendezvous)"));
    store.get = broken;
    assert_int_equal(dp_comm_open(&config, &comm), DP_EIO);
    config.rank = 0;
    expect_error(dp_comm_open(&config, &comm), DP_EIO, "did not take the address of rank 0");
    store.put = NULL;
    expect_error(dp_comm_open(&config, &comm), DP_EINVAL, "no put function");
    config.store = NULL;
    config.listener = 12345;
    expect_error(dp_comm_open(&config, &comm), DP_EINVAL, "expected a TCP socket that listens");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    config.listener = pair[0];
    assert_int_equal(dp_comm_open(&config, &comm), DP_EINVAL);
    assert_int_equal(close(pair[0]), -1); /* it was taken */
    close(pair[1]);
    config.rank = 1;
    config.listener = dup(0);
    expect_error(dp_comm_open(&config, &comm), DP_EINVAL, "on rank 0 only");
}

static int come_alone(const struct rank *r)
{
    struct dp_comm *comm;

    EXPECT(try_open(r, (struct dp_comm_config){.timeout_ns = 3 * DP_NS_PER_S}, &comm) ==
           DP_ETIMEDOUT);
    EXPECT_SAYS("of 4 ranks, these did not come within 3.0 s: 2, 3");
    return 0;
}

CASE(missing_ranks_are_named_to_those_present)
{
    run_some(2, 4, come_alone, NULL);
}

static int come_without_root(const struct rank *r)
{
    struct dp_comm *comm;
    struct rank second = *r;

    second.rank = 1;
    EXPECT(try_open(&second, (struct dp_comm_config){.timeout_ns = SHORT_NS}, &comm) ==
           DP_ETIMEDOUT);
    EXPECT_SAYS("no rank 0 at localhost:");
    EXPECT_SAYS("Connection refused");
    return 0;
}

static int stop_soon(void *user)
{
    return ++*(int *)user < 3 ? 0 : DP_EINTERRUPTED;
}

/* As rank 0 for the others, as rank 1 for rank 0; with a store for what it says. */
static int open_and_stop(const struct rank *r)
{
    const struct dp_comm_store *store = r->arg;
    struct dp_comm *comm;
    int calls = 0;

    EXPECT(try_open(r, (struct dp_comm_config){.poll = stop_soon, .poll_user = &calls,
                                               .store = store}, &comm) == DP_EINTERRUPTED);
    EXPECT(calls == 3 && strstr(dp_last_error(), "interrupted"));
    return 0;
}

static int find_nothing(void *user, const char *key, void *value, size_t *len)
{
    return DP_EAGAIN;
}

static int put_nowhere(void *user, const char *key, const void *value, size_t len)
{
    return 0;
}

CASE(a_poll_function_ends_an_open)
{
    static const struct dp_comm_store empty = {.put = put_nowhere, .get = find_nothing};
    const int port = find_free_port();

    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(wait_for(start_rank(rank, 2, port, open_and_stop, NULL)), 0);
        assert_int_equal(wait_for(start_rank(rank, 2, port, open_and_stop, &empty)), 0);
    }
}

/* Rank 1 leaves only once rank 0's close has returned. */
static int close_and_stop(const struct rank *r)
{
    const int *over = r->arg; /* a pipe */
    struct dp_comm *comm;
    int calls = 0;
    char byte = 0;

    EXPECT(!try_open(r, (struct dp_comm_config){0}, &comm));
    EXPECT(!dp_comm_barrier(comm));
    if (r->rank) {
        EXPECT(read(over[0], &byte, 1) == 1);
        dp_comm_close(comm);
        return 0;
    }
    dp_comm_set_poll(comm, stop_soon, &calls);
    dp_comm_close(comm);
    EXPECT(calls == 3);
    EXPECT(write(over[1], &byte, 1) == 1);
    return 0;
}

CASE(a_poll_function_ends_a_close)
{
    int over[2];

    assert_int_equal(pipe(over), 0);
    run_some(2, 2, close_and_stop, over);
    close(over[0]);
    close(over[1]);
}

CASE(a_rank_0_that_does_not_come_is_named)
{
    run_some(1, 2, come_without_root, NULL);
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static int be_refused(const struct rank *r, const char *secret, const char *sentence)
{
    struct dp_comm *comm;

    EXPECT(try_open(r, (struct dp_comm_config){.secret = secret}, &comm) == DP_EMISMATCH);
    EXPECT_SAYS(sentence);
    return 0;
}

static int with_wrong_secret(const struct rank *r)
{
    return be_refused(r, r->arg, "the secret is not the same");
}

static int of_wrong_size(const struct rank *r)
{
    return be_refused(r, r->arg, "this group has 3 ranks, not 5");
}

/* The intruders connect first, and do not keep members from joining afterwards. */
CASE(a_rank_that_does_not_fit_is_refused_and_the_rest_goes_on)
{
    const int port = find_free_port();
    const char *secret = "right";
    pid_t root = start_rank(0, 3, port, open_and_meet, secret);
    pid_t intruders[] = {
        start_rank(1, 3, port, with_wrong_secret, "wrong"),
        start_rank(1, 3, port, with_wrong_secret, NULL),
        start_rank(1, 5, port, of_wrong_size, secret),
    };

    for (size_t i = 0; i < sizeof(intruders) / sizeof(intruders[0]); i++)
        assert_int_equal(wait_for(intruders[i]), 0);
    pid_t first = start_rank(1, 3, port, open_and_meet, secret);
    pid_t second = start_rank(2, 3, port, open_and_meet, secret);
    assert_int_equal(wait_for(first), 0);
    assert_int_equal(wait_for(second), 0);
    assert_int_equal(wait_for(root), 0);
}

/* A rank 0 that does not know the secret cannot have guessed its proof. */
static int meet_false_root(const struct rank *r)
{
    struct dp_comm *comm;

    if (r->rank == 0) /* it is killed, or a member has joined */
        return try_open(r, (struct dp_comm_config){.secret = "guess"}, &comm) ? -1 : 0;
    return be_refused(r, "right", "the secret is not the same");
}

CASE(a_rank_0_with_another_secret_gets_no_members)
{
    const int port = find_free_port();
    const pid_t root = start_rank(0, 2, port, meet_false_root, NULL);
    int status;

    assert_int_equal(wait_for(start_rank(1, 2, port, meet_false_root, NULL)), 0);
    assert_int_equal(waitpid(root, &status, WNOHANG), 0); /* it still waits */
    kill(root, SIGKILL);
    wait_for(root);
}

static int with_transport_of_its_own(const struct rank *r)
{
    struct dp_comm *comm;

    int err = try_open(
        r, (struct dp_comm_config){.transport = r->rank == 2 ? "tcp" : "shm"}, &comm);
    EXPECT(err == DP_EMISMATCH);
    EXPECT_SAYS("rank 0 has shm, but rank 2 has tcp");
    return 0;
}

CASE(ranks_that_want_different_transports_are_named)
{
    run_some(3, 3, with_transport_of_its_own, NULL);
}

/* ---- strangers ------------------------------------------------------------------------------- */

static int dial(int port)
{
    const struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int64_t until_ns = dp_now_ns() + 10 * DP_NS_PER_S;
    int fd = -1;

    while (dp_now_ns() < until_ns) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(fd, (const struct sockaddr *)&place, sizeof(place)))
            return fd;
        close(fd);
    }
    fail_msg("nobody listens at port %d", port);
    return -1;
}

/* The first bytes of a member after the acceptor's handshake: a message's header, then HELLO. */
struct first_words {
    struct {
        uint32_t magic, zero;
        uint64_t len, tag, padding[5];
    } header;
    struct dp_rendezvous_message message;
};

static struct first_words valid_messages(void)
{
    return (struct first_words){
        .header = {.magic = 0x44507774, .len = sizeof(struct dp_rendezvous_message),
                   .tag = DP_RENDEZVOUS_HELLO},
        .message = {.kind = DP_RENDEZVOUS_HELLO, .rank = 1, .value = 2},
    };
}

static const uint8_t control_cookie[DP_COOKIE_BYTES] = "dualpipe-control";

/* is_right: the proof is. sockets: of the wire, of which this is one; 0: it is the only one. false:
 * refused. */
static bool shake_hands(int fd, bool is_right, uint64_t sockets)
{
    const struct dp_hello hello = {.magic = 0x44507731, .version = DP_HELLO_VERSION,
                                   .kind = DP_HELLO_TCP, .extra = (uint64_t)fd << 16 | sockets};
    struct dp_challenge challenge;
    uint8_t proof[DP_HMAC_BYTES];

    if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
        recv(fd, &challenge, sizeof(challenge), MSG_WAITALL) != sizeof(challenge))
        return false;
    dp_hello_prove(is_right ? DP_HELLO_CONNECTOR : DP_HELLO_ACCEPTOR, control_cookie, &hello,
                   challenge.nonce, proof);
    return send(fd, proof, sizeof(proof), MSG_NOSIGNAL) == sizeof(proof);
}

/* The side of rank 0. */
static void let_in(int fd)
{
    const uint32_t welcome = 0x44507757;
    struct dp_challenge challenge = {.magic = 0x44507743};
    struct dp_hello hello;
    uint8_t proof[DP_HMAC_BYTES];

    if (recv(fd, &hello, sizeof(hello), MSG_WAITALL) != sizeof(hello))
        return;
    dp_hello_prove(DP_HELLO_ACCEPTOR, control_cookie, &hello, challenge.nonce, challenge.proof);
    if (send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL) == sizeof(challenge) &&
        recv(fd, proof, sizeof(proof), MSG_WAITALL) == sizeof(proof))
        send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL);
}

static uint32_t next_random(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

/* Messages that are truncated, with changed bytes, or too long. */
static void send_something_wrong(int fd, uint32_t *seed)
{
    unsigned char bytes[sizeof(struct first_words) + 64];
    const struct first_words right = valid_messages();
    size_t len = sizeof(right);

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)next_random(seed);
    memcpy(bytes, &right, sizeof(right));
    switch (next_random(seed) % 3) {
    case 0:
        len = next_random(seed) % sizeof(right);
        break;
    case 1:
        for (int i = 0; i < 4; i++)
            bytes[next_random(seed) % sizeof(right)] = (unsigned char)next_random(seed);
        break;
    case 2:
        len = sizeof(bytes);
        break;
    }
    ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

CASE(strangers_that_connect_to_a_group_do_no_harm)
{
    enum { STRANGERS = 400, SILENT = 20 };
    const int port = find_free_port();
    pid_t root = start_rank(0, 2, port, open_and_meet, "right");
    uint32_t seed = 20240607;
    int silent[SILENT];

    for (int i = 0; i < SILENT; i++)
        silent[i] = dial(port);
    for (int i = 0; i < STRANGERS; i++) {
        int fd = dial(port);
        if (i % 8 == 0 || shake_hands(fd, i % 8 > 1, 0))
            send_something_wrong(fd, &seed);
        if (i % 2) {
            char answer[512];
            ssize_t n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
            (void)n;
        }
        close(fd);
    }
    pid_t member = start_rank(1, 2, port, open_and_meet, "right");
    assert_int_equal(wait_for(member), 0);
    assert_int_equal(wait_for(root), 0);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
}

static int open_with_few_files(const struct rank *r)
{
    EXPECT(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){48, 48}));
    return open_and_meet(r);
}

/* More of them than rank 0 may have files: silent ones, ones that go on as far as any process can, and ones
 * that say that more sockets follow. */
CASE(strangers_that_stay_take_no_files_from_a_group)
{
    enum { EACH = 40 };
    const struct timeval soon = {.tv_usec = 50000};
    const int port = find_free_port();
    const pid_t root = start_rank(0, 2, port, open_with_few_files, NULL);
    int fds[3 * EACH];

    for (int i = 0; i < 3 * EACH; i++) {
        fds[i] = dial(port);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
        if (i % 3)
            shake_hands(fds[i], true, i % 3 == 1 ? 0 : 16);
    }
    assert_int_equal(wait_for(start_rank(1, 2, port, open_and_meet, NULL)), 0);
    assert_int_equal(wait_for(root), 0);
    for (int i = 0; i < 3 * EACH; i++)
        close(fds[i]);
}

/* Its listening sockets that others than this host reach. */
static int count_public_listeners(void)
{
    int count = 0;

    for (int fd = 3; fd < 256; fd++) {
        union dp_sockaddr at;
        socklen_t len = sizeof(at), listens_len = sizeof(int);
        int listens = 0;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_len) && listens &&
            !getsockname(fd, &at.any, &len) && at.any.sa_family != AF_UNIX)
            count += !dp_sockaddr_is_loopback(&at);
    }
    return count;
}

static int open_at_host(const struct rank *r)
{
    char address[64];
    struct dp_comm *comm;

    snprintf(address, sizeof(address), "%s:%d", (const char *)r->arg, r->port);
    EXPECT(!try_open(r, (struct dp_comm_config){.address = address}, &comm));
    EXPECT(count_public_listeners() == !strcmp(r->arg, "127.0.1.1"));
    EXPECT(!dp_comm_barrier(comm));
    dp_comm_close(comm);
    return 0;
}

/* As a name for this host Debian has 127.0.1.1. */
CASE(a_group_of_the_loopback_listens_there_only)
{
    run_some(2, 2, open_at_host, "localhost");
    run_some(2, 2, open_at_host, "127.0.0.1");
    run_some(2, 2, open_at_host, "127.0.1.1");
}

/* The reverse: a process in place of rank 0 that sends anything. */
static int meet_false_rank_0(const struct rank *r)
{
    struct dp_comm *comm;
    struct rank second = *r;

    second.rank = 1;
    int err = try_open(&second, (struct dp_comm_config){.timeout_ns = SHORT_NS}, &comm);
    EXPECT(err == DP_ETIMEDOUT || err == DP_EMISMATCH || err == DP_ECOMM);
    return 0;
}

CASE(a_false_rank_0_does_no_harm_either)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(any);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    uint32_t seed = 7;

    assert_int_equal(bind(listener, (struct sockaddr *)&any, len), 0);
    assert_int_equal(listen(listener, 100), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&any, &len), 0);
    pid_t member = start_rank(0, 2, ntohs(any.sin_port), meet_false_rank_0, NULL);
    struct timeval timeout = {.tv_sec = 1};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        let_in(fd);
        send_something_wrong(fd, &seed);
        close(fd);
    }
    assert_int_equal(wait_for(member), 0);
    close(listener);
}

/* ---- a host with several addresses ----------------------------------------------------------- */

typedef int resolve_fn(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* In place of libc's: "manifold" has two addresses. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    resolve_fn *libc;
    const bool is_manifold = name && !strcmp(name, "manifold");

    *(void **)&libc = dlsym(RTLD_NEXT, "getaddrinfo");
    int err = libc(is_manifold ? "127.0.0.2" : name, service, hints, out);
    return err || !is_manifold ? err : libc("127.0.0.1", service, hints, &(*out)->ai_next);
}

static int join_by_the_second_address(const struct rank *r)
{
    char address[32];
    struct dp_comm *comm;

    snprintf(address, sizeof(address), "%s:%d", r->rank ? "manifold" : "127.0.0.1", r->port);
    EXPECT(!try_open(r, (struct dp_comm_config){.address = address, .timeout_ns = 2 * DP_NS_PER_S},
                     &comm));
    EXPECT(!dp_comm_barrier(comm));
    dp_comm_close(comm);
    return 0;
}

/* What listens there accepts, and says nothing. */
CASE(an_address_that_does_not_answer_leaves_time_for_the_next)
{
    const int port = find_free_port();
    struct sockaddr_in second = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    int silent = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(silent, (struct sockaddr *)&second, sizeof(second)), 0);
    assert_int_equal(listen(silent, 16), 0);
    pid_t root = start_rank(0, 2, port, join_by_the_second_address, NULL);
    assert_int_equal(wait_for(start_rank(1, 2, port, join_by_the_second_address, NULL)), 0);
    assert_int_equal(wait_for(root), 0);
    close(silent);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static void expect_refusal(struct dp_comm_config config, int error, const char *sentence)
{
    struct dp_comm *comm;

    assert_int_equal(dp_comm_open(&config, &comm), error);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
}

CASE(bad_configs_are_refused_in_a_sentence)
{
    struct dp_comm *comm;
    const char *here = "127.0.0.1:1";

    assert_int_equal(dp_comm_open(NULL, &comm), DP_EINVAL);
    expect_refusal((struct dp_comm_config){.rank = 2, .size = 2, .address = here}, DP_EINVAL,
                   "rank 2 of 2: expected a rank from 0 to 1");
    expect_refusal((struct dp_comm_config){.size = 2, .address = here, .transport = "pigeon"},
                   DP_EINVAL, "transport 'pigeon': expected auto, shm");
    expect_refusal((struct dp_comm_config){.size = 2}, DP_EINVAL, "no address: expected host:port");
    expect_refusal((struct dp_comm_config){.size = 2, .address = "host"}, DP_EINVAL,
                   "address 'host': expected host:port");
    expect_refusal((struct dp_comm_config){.size = 2, .address = "host:0"}, DP_EINVAL,
                   "port from 1 to 65535");
    expect_refusal((struct dp_comm_config){.size = 2, .address = "[::1:5"}, DP_EINVAL,
                   "expected host:port");
    expect_refusal((struct dp_comm_config){.size = 2, .address = here, .timeout_ns = -1}, DP_EINVAL,
                   "timeout of -1 ns");
    expect_refusal((struct dp_comm_config){.rank = 1, .size = 2, .address = "no..host:5"}, DP_ECOMM,
                   "host 'no..host': ");
    expect_refusal((struct dp_comm_config){.size = 0}, DP_EINVAL,
                   "no rank and size given, and not started by torchrun, mpirun or srun");
    setenv("DUALPIPE_COMM_TRANSPRT", "tcp", 1);
    expect_refusal((struct dp_comm_config){.size = 2, .address = here}, DP_EINVAL,
                   "did you mean DUALPIPE_COMM_TRANSPORT");
    unsetenv("DUALPIPE_COMM_TRANSPRT");
    setenv("DUALPIPE_WIRE_TCP_BUFFER", "much", 1); /* no reason to try again */
    expect_refusal((struct dp_comm_config){.rank = 1, .size = 2, .address = here}, DP_EINVAL,
                   "DUALPIPE_WIRE_TCP_BUFFER=much: expected a whole number");
    unsetenv("DUALPIPE_WIRE_TCP_BUFFER");
}

CASE(a_port_in_use_is_named)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(any);
    int taken = socket(AF_INET, SOCK_STREAM, 0);
    char address[32], sentence[64];

    assert_int_equal(bind(taken, (struct sockaddr *)&any, len), 0);
    assert_int_equal(listen(taken, 1), 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&any, &len), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(any.sin_port));
    snprintf(sentence, sizeof(sentence), "port %d on 127.0.0.1 is in use", ntohs(any.sin_port));
    expect_refusal((struct dp_comm_config){.size = 2, .address = address}, DP_ECOMM, sentence);
    close(taken);
}

/* ---- environment ------------------------------------------------------------------------------ */

static int open_from_environment(const struct rank *r)
{
    char text[16];
    struct dp_comm *comm;

    snprintf(text, sizeof(text), "%d", r->rank);
    setenv("RANK", text, 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof(text), "%d", r->port - 1);
    setenv("MASTER_PORT", text, 1);
    setenv("DUALPIPE_COMM_TIMEOUT_MS", "7000", 1);
    setenv("DUALPIPE_COMM_SECRET", "s", 1);
    EXPECT(!dp_comm_open(&(struct dp_comm_config){.size = 0}, &comm));
    EXPECT(dp_comm_rank(comm) == r->rank && dp_comm_size(comm) == 3);
    EXPECT(dp_comm_deadline(comm) == 7 * DP_NS_PER_S);
    EXPECT(!dp_comm_barrier(comm));
    dp_comm_close(comm);
    return 0;
}

CASE(all_of_it_can_come_from_the_environment)
{
    run_some(3, 3, open_from_environment, NULL);
}

/* Of a program that was compiled against a later release, and asks for what this one does not know. */
CASE(a_config_of_a_later_release_is_refused_and_its_listener_closed)
{
    LATER(dp_comm_config) config = {{.size = 1, .listener = socket(AF_INET, SOCK_STREAM, 0)}, 1};
    struct dp_comm *comm;

    assert_true(config.known.listener > 0);
    assert_int_equal(dp_comm_open_sized(&config.known, &comm, sizeof(config)), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "struct dp_comm_config"));
    assert_int_equal(fcntl(config.known.listener, F_GETFD), -1);
}
