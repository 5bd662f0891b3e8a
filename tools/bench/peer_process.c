/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "bench/peer_process.h"

#include "bench/bench.h"

#include <dualpipe/dualpipe.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 32 };
static const int64_t PATIENCE_NS = INT64_C(30000000000), GOODBYE_NS = INT64_C(2000000000);

/* A process and the pipe that it prints into. */
struct child {
    pid_t pid; /* 0: none */
    int fd;    /* -1: none */
};

static int fail(char *why, size_t why_len, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(char *why, size_t why_len, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, why_len, fmt, args);
    va_end(args);
    return DP_EIO;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
}

/* ---- the words of a command ------------------------------------------------------------------ */

/* Where mpi-peer is: beside this program in its build tree, or where it is installed. */
static const char *mpi_peer(void)
{
    static const char *const beside[] = {"/../bench/mpi-peer", "/bench/mpi-peer"};
    static char path[PATH_MAX + 32];
    char self[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    const char *slash = len > 0 ? (self[len] = '\0', strrchr(self, '/')) : NULL;

    for (int i = 0; slash && i < 2; i++) {
        snprintf(path, sizeof(path), "%.*s%s", (int)(slash - self), self, beside[i]);
        if (!access(path, X_OK))
            return path;
    }
    return DP_HELPER_DIR "/mpi-peer";
}

bool peer_process_is_installed(const char *command)
{
    if (strstr(command, "@mpi-peer") && access(mpi_peer(), X_OK))
        return false;

    const int len = (int)strcspn(command, " ");
    const char *path = getenv("PATH");
    bool found = false;

    for (const char *dir = path ? path : ""; *dir && !found;) {
        const int dir_len = (int)strcspn(dir, ":");
        char *file;
        if (asprintf(&file, "%.*s/%.*s", dir_len, dir, len, command) < 0)
            return false;
        found = !access(file, X_OK);
        free(file);
        dir += dir_len + (dir[dir_len] == ':');
    }
    return found;
}

struct words {
    char *text;
    char *words[WORDS_MAX + 1];
    char port[16], size[32], times[16], warmup[16];
    char mpi_peer[PATH_MAX + 32];
};

static char *fill_in(struct words *w, char *word)
{
    const struct {
        const char *name;
        char *value;
    } known[] = {{"@port", w->port}, {"@size", w->size}, {"@times", w->times},
                 {"@warmup", w->warmup}, {"@mpi-peer", w->mpi_peer}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(word, known[i].name))
            return known[i].value;
    return word;
}

static void split(struct words *w, const struct peer_command *c, const char *text, int port)
{
    char *rest;
    int count = 0;

    snprintf(w->port, sizeof(w->port), "%d", port);
    snprintf(w->size, sizeof(w->size), "%zu", c->size);
    snprintf(w->times, sizeof(w->times), "%d", c->times);
    snprintf(w->warmup, sizeof(w->warmup), "%d", 1 + c->times / 8);
    snprintf(w->mpi_peer, sizeof(w->mpi_peer), "%s", mpi_peer());
    w->text = strdup(text);
    for (char *word = w->text ? strtok_r(w->text, " ", &rest) : NULL; word && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        w->words[count++] = fill_in(w, word);
    w->words[count] = NULL;
}

static void set_environment(const char *assignments)
{
    char *text = strdup(assignments ? assignments : ""), *rest = NULL;

    for (char *word = text ? strtok_r(text, " ", &rest) : NULL; word;
         word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        *equals = 0;
        setenv(word, equals + 1, 1);
    }
    free(text);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void become(const struct peer_command *c, const char *text, int port, int core, int fd)
{
    struct words w;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Who starts both sides puts them on their cores. */
    if (c->server)
        bench_pin(core);
    else
        bench_unpin();
    set_environment(c->environment);
    split(&w, c, text, port);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (w.words[0])
        execvp(w.words[0], w.words);
    dprintf(STDERR_FILENO, "%s: %s\n", text, strerror(errno));
    _exit(127);
}

static int start(struct child *child, const struct peer_command *c, const char *text, int port,
                 int core)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC))
        return DP_EIO;
    fflush(stdout);
    child->pid = fork();
    if (child->pid == 0)
        become(c, text, port, core, fds[1]);
    close(fds[1]);
    child->fd = fds[0];
    if (child->pid > 0)
        return 0;
    child->pid = 0;
    return DP_EIO;
}

static void finish(struct child *child)
{
    if (child->pid > 0) {
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (child->fd >= 0)
        close(child->fd);
    *child = (struct child){.fd = -1};
}

/* Keep the end of what it prints, until it closes its output. */
static bool read_all(struct child *child, int64_t until_ns, char output[PEER_OUTPUT_MAX])
{
    size_t len = 0;

    output[0] = 0;
    for (;;) {
        struct pollfd fd = {.fd = child->fd, .events = POLLIN};
        const int64_t left_ns = until_ns - bench_now_ns();
        if (left_ns <= 0 || poll(&fd, 1, (int)(left_ns / 1000000) + 1) <= 0)
            return false;
        if (len > PEER_OUTPUT_MAX / 2) {
            memmove(output, output + len - PEER_OUTPUT_MAX / 2, PEER_OUTPUT_MAX / 2);
            len = PEER_OUTPUT_MAX / 2;
        }
        ssize_t n = read(child->fd, output + len, PEER_OUTPUT_MAX - 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        len += (size_t)n;
        output[len] = 0;
    }
}

/* ---- where the two meet ---------------------------------------------------------------------- */

/* A port that is free now. */
static int find_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;

    if (fd >= 0 && !bind(fd, (struct sockaddr *)&at, len) &&
        !getsockname(fd, (struct sockaddr *)&at, &len))
        port = ntohs(at.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* State 0A of /proc/net/tcp is listening. To ask by connecting would take the server's only
 * client. */
static bool is_listening_in(const char *file, int port)
{
    FILE *f = fopen(file, "re");
    char line[512];
    unsigned local, state;
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
                (int)local == port && state == 0x0A;
    if (f)
        fclose(f);
    return found;
}

static bool is_listening(int port)
{
    return is_listening_in("/proc/net/tcp", port) || is_listening_in("/proc/net/tcp6", port);
}

static int await_server(struct child *server, int port, int64_t until_ns, char *why, size_t why_len)
{
    while (!is_listening(port)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return fail(why, why_len, "its server has ended at once");
        }
        if (bench_now_ns() > until_ns)
            return fail(why, why_len, "its server does not listen on port %d", port);
        nap();
    }
    return 0;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static int check_end(struct child *client, const char *output, char *why, size_t why_len)
{
    int status = 0;

    while (waitpid(client->pid, &status, 0) < 0 && errno == EINTR)
        ;
    client->pid = 0;
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    return fail(why, why_len, "it has failed: %.200s", output);
}

/* Who is killed may leave files in /dev/shm behind. */
static void see_off(struct child *server)
{
    char output[PEER_OUTPUT_MAX];

    read_all(server, bench_now_ns() + GOODBYE_NS, output);
}

int peer_process_run(const struct peer_command *c, char output[PEER_OUTPUT_MAX], char *why,
                     size_t why_len)
{
    const int64_t until_ns = bench_now_ns() + PATIENCE_NS;
    struct child server = {.fd = -1}, client = {.fd = -1};
    const int port = find_port();
    int err = 0;

    if (port < 0)
        return fail(why, why_len, "no free port: %s", strerror(errno));
    if (c->server && start(&server, c, c->server, port, 1))
        err = fail(why, why_len, "cannot start it: %s", strerror(errno));
    else if (c->server)
        err = await_server(&server, port, until_ns, why, why_len);
    if (!err && start(&client, c, c->client, port, 0))
        err = fail(why, why_len, "cannot start it: %s", strerror(errno));
    if (!err && !read_all(&client, until_ns, output))
        err = fail(why, why_len, "it has not ended in time");
    if (!err)
        err = check_end(&client, output, why, why_len);
    if (!err && server.pid)
        see_off(&server);
    finish(&client);
    finish(&server);
    return err;
}
