/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/bench/peer_process.h"

#include "bench/bench.h"

#include <dualpipe/dualpipe.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

enum { RESTED = 2 /* looks that have found it asleep */ };
static const int64_t DEADLINE_NS = INT64_C(30000000000), GOODBYE_NS = INT64_C(2000000000);

/* A process, the pipe that it prints into, and the one that it reads from. */
struct child {
    pid_t pid;     /* 0: none */
    int fd, input; /* -1: none */
};
#define NO_CHILD ((struct child){.fd = -1, .input = -1})

struct peer_process {
    const struct peer_command *command;
    struct child server, client;
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

static void backoff(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
}

/* ---- processes ------------------------------------------------------------------------------- */

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

/* In a session of its own, by which its processes are found. */
static void become(const struct peer_command *c, const char *text, struct peer_load load, int port,
                   int core, int output, int input)
{
    struct peer_text w;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    /* The program that starts both sides puts them on their cores. */
    if (c->server)
        bench_pin(core);
    else
        bench_unpin();
    set_environment(c->environment);
    peer_text_split(&w, text, load, port);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (w.words[0])
        execvp(w.words[0], w.words);
    dprintf(STDERR_FILENO, "%s: %s\n", text, strerror(errno));
    _exit(127);
}

static int start(struct child *child, const struct peer_command *c, const char *text,
                 struct peer_load load, int port, int core)
{
    int out[2], in[2];

    if (pipe2(out, O_CLOEXEC))
        return DP_EIO;
    if (pipe2(in, O_CLOEXEC)) {
        close(out[0]);
        close(out[1]);
        return DP_EIO;
    }
    fflush(stdout);
    child->pid = fork();
    if (child->pid == 0)
        become(c, text, load, port, core, out[1], in[0]);
    close(out[1]);
    close(in[0]);
    child->fd = out[0];
    child->input = in[1];
    if (child->pid > 0)
        return 0;
    child->pid = 0;
    return DP_EIO;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void finish(struct child *child)
{
    /* A wait for all children has perhaps reaped it already; then the number is free. */
    if (child->pid > 0 && waitpid(child->pid, NULL, WNOHANG) == 0) {
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    close_fd(&child->fd);
    close_fd(&child->input);
    *child = NO_CHILD;
}

/* Keep the end of what it prints, until it closes its output. */
static bool read_all(struct child *child, int64_t until_ns, char output[PEER_OUTPUT_MAX])
{
    size_t len = 0;

    output[0] = 0;
    for (;;) {
        struct pollfd fd = {.fd = child->fd, .events = POLLIN};
        const int64_t left_ns = until_ns - now_ns();
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
        if (now_ns() > until_ns)
            return fail(why, why_len, "its server does not listen on port %d", port);
        backoff();
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

/* A program that is killed may leave files in /dev/shm behind. */
static void see_off(struct child *child)
{
    char output[PEER_OUTPUT_MAX];

    if (!child->pid)
        return;
    close_fd(&child->input);
    read_all(child, now_ns() + GOODBYE_NS, output);
}

static int start_both(struct peer_process *p, struct peer_load load, int64_t until_ns, char *why,
                      size_t why_len)
{
    const struct peer_command *c = p->command;
    const int port = find_port();
    int err = 0;

    p->server = p->client = NO_CHILD;
    if (port < 0)
        return fail(why, why_len, "no free port: %s", strerror(errno));
    if (c->server && start(&p->server, c, c->server, load, port, 1))
        err = fail(why, why_len, "cannot start it: %s", strerror(errno));
    else if (c->server)
        err = await_server(&p->server, port, until_ns, why, why_len);
    if (!err && start(&p->client, c, c->client, load, port, 0))
        err = fail(why, why_len, "cannot start it: %s", strerror(errno));
    return err;
}

int peer_process_run(const struct peer_command *c, struct peer_load load,
                     char output[PEER_OUTPUT_MAX], char *why, size_t why_len)
{
    const int64_t until_ns = now_ns() + DEADLINE_NS;
    struct peer_process p = {.command = c};
    int err = start_both(&p, load, until_ns, why, why_len);

    if (!err && !read_all(&p.client, until_ns, output))
        err = fail(why, why_len, "it has not ended in time");
    if (!err)
        err = check_end(&p.client, output, why, why_len);
    if (!err)
        see_off(&p.server);
    finish(&p.client);
    finish(&p.server);
    return err;
}

/* ---- one that lives -------------------------------------------------------- */

int peer_process_open(const struct peer_command *c, struct peer_process **out, char *why,
                      size_t why_len)
{
    struct peer_process *p = calloc(1, sizeof(*p));

    if (!p)
        return fail(why, why_len, "no memory");
    p->command = c;
    int err = start_both(p, (struct peer_load){0}, now_ns() + DEADLINE_NS, why, why_len);
    if (err)
        peer_process_close(p);
    else
        *out = p;
    return err;
}

void peer_process_close(struct peer_process *p)
{
    if (!p)
        return;
    see_off(&p->client);
    see_off(&p->server);
    finish(&p->client);
    finish(&p->server);
    free(p);
}

/* ---- what its processes do ------------------------------------------------------------------- */

struct doing {
    long long ticks; /* of CPU time, those of children that have ended included */
    int running;     /* processes */
};

/* Add a process, if it is of one of these sessions. */
static void add_process(const char *pid, const pid_t sessions[2], struct doing *sum)
{
    long long user, system, children_user, children_system;
    char path[64], text[512], state;
    int session;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    FILE *f = fopen(path, "re");
    const size_t len = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[len] = 0;
    const char *behind_name = strrchr(text, ')');
    if (!behind_name ||
        sscanf(behind_name, ") %c %*d %*d %d %*d %*d %*u %*u %*u %*u %*u %lld %lld %lld %lld",
               &state, &session, &user, &system, &children_user, &children_system) != 6 ||
        (session != sessions[0] && session != sessions[1]))
        return;
    sum->ticks += user + system + children_user + children_system;
    sum->running += state != 'S' && state != 'Z';
}

static struct doing look_at(const struct peer_process *p)
{
    const pid_t sessions[2] = {p->client.pid, p->server.pid ? p->server.pid : p->client.pid};
    struct doing sum = {0, 0};
    DIR *dir = opendir("/proc");

    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir))
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9')
            add_process(d->d_name, sessions, &sum);
    if (dir)
        closedir(dir);
    return sum;
}

int64_t peer_process_cpu_ns(const struct peer_process *p)
{
    return look_at(p).ticks * (INT64_C(1000000000) / sysconf(_SC_CLK_TCK));
}

/* A program that has answered may still free memory, which would take time from the next one. */
static void await_rest(const struct peer_process *p)
{
    const int64_t until_ns = now_ns() + GOODBYE_NS;

    for (int quiet = 0; quiet < RESTED && now_ns() < until_ns; backoff())
        quiet = look_at(p).running ? 0 : quiet + 1;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static bool tell(const struct child *child, const char *text)
{
    const size_t len = strlen(text);

    return child->input < 0 || write(child->input, text, len) == (ssize_t)len;
}

static int give_order(struct peer_process *p, const char *order, struct peer_load load)
{
    char line[256] = "";
    size_t len = 0;
    struct peer_text w;

    peer_text_split(&w, order, load, 0);
    for (int i = 0; w.words[i] && len < sizeof(line); i++)
        len += (size_t)snprintf(line + len, sizeof(line) - len, "%s%s", w.words[i],
                                w.words[i + 1] ? " " : "\n");
    free(w.text);
    return tell(&p->server, line) && tell(&p->client, line) ? 0 : DP_EIO;
}

/* Less than a line is read at a time, as a line ends what an order has to tell. */
static bool read_line(struct child *child, int64_t until_ns, char line[PEER_OUTPUT_MAX])
{
    struct pollfd fd = {.fd = child->fd, .events = POLLIN};
    size_t len = 0;

    line[0] = 0;
    while (len < PEER_OUTPUT_MAX - 1) {
        const int64_t left_ns = until_ns - now_ns();
        if (left_ns <= 0 || poll(&fd, 1, (int)(left_ns / 1000000) + 1) <= 0)
            return false;
        if (read(child->fd, line + len, 1) != 1)
            return false;
        if (line[len] == '\n')
            break;
        line[++len] = 0;
    }
    line[len] = 0;
    return true;
}

int peer_process_order(struct peer_process *p, const char *order, struct peer_load load,
                       bool (*is_answer)(void *user, const char *line), void *user, char *why,
                       size_t why_len)
{
    const int64_t until_ns = now_ns() + DEADLINE_NS;
    char line[PEER_OUTPUT_MAX], last[128] = "nothing";

    signal(SIGPIPE, SIG_IGN);
    if (give_order(p, order, load))
        return fail(why, why_len, "it has ended");
    for (;;) {
        if (!read_line(&p->client, until_ns, line))
            return fail(why, why_len, "no figure in what it printed: %s", last);
        if (is_answer(user, line)) {
            await_rest(p);
            return 0;
        }
        if (line[0])
            snprintf(last, sizeof(last), "%.120s", line);
    }
}
