/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_main.c - run a fuzz target where there is no fuzzer: on every file given (or in the
 * directories given), and on a fixed number of random changes of each.
 *
 *      fuzz_NAME [-n CHANGES] FILE|DIRECTORY...    by default the seeds in tests/data/fuzz/NAME
 *
 * With clang, the target alone and -fsanitize=fuzzer make a libFuzzer program.
 */
#include "fuzz.h"

#include <dirent.h>
#include <dualpipe/dualpipe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

struct input {
    uint8_t *data;
    size_t len, capacity;
};

static uint64_t random_state = 0x9e3779b97f4a7c15u;
static long changes = 3000, runs;

static size_t random_below(size_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return n ? (size_t)(random_state % n) : 0;
}

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "fuzz: %s %s\n", what, path);
    exit(2);
}

static struct input load(const char *path)
{
    struct input in = {0};
    FILE *f = fopen(path, "rb");
    struct stat st;

    if (!f || fstat(fileno(f), &st))
        give_up("cannot read", path);
    in.len = (size_t)st.st_size;
    in.capacity = 2 * in.len + 64;
    in.data = malloc(in.capacity);
    if (!in.data || fread(in.data, 1, in.len, f) != in.len)
        give_up("cannot read", path);
    fclose(f);
    return in;
}

/* As libFuzzer's alarm, which no call goes on after by itself; only oftener. */
static void ring(int signal)
{
    (void)signal;
}

static void set_alarm(int interval_us)
{
    const struct sigaction action = {.sa_handler = ring};
    const struct itimerval timer = {{0, interval_us}, {0, interval_us}};

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* What targets run on is a copy of exactly the input's size, so that reading past it is noticed. */
static void run(const uint8_t *data, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1);

    memcpy(exact, data, len);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    runs++;
}

/* ---- changes ------------------------------------------------------------------------------- */

static void flip(struct input *in)
{
    if (in->len)
        in->data[random_below(in->len)] ^= (uint8_t)(1u << random_below(8));
}

static void overwrite(struct input *in)
{
    static const char bytes[] = "0123456789FBIWrscxR.&|#,: \n{}[]\"-P=M";
    if (in->len)
        in->data[random_below(in->len)] = (uint8_t)bytes[random_below(sizeof(bytes) - 1)];
}

static void cut(struct input *in)
{
    size_t at = random_below(in->len), n = random_below(in->len - at < 40 ? in->len - at : 40);

    memmove(in->data + at, in->data + at + n, in->len - at - n);
    in->len -= n;
}

/* Copy a piece to another place, making room for it. */
static void splice(struct input *in)
{
    uint8_t piece[40];
    size_t n = random_below(in->len < sizeof(piece) ? in->len : sizeof(piece));
    size_t from = random_below(in->len - n), to = random_below(in->len);

    if (in->len + n > in->capacity)
        return;
    memcpy(piece, in->data + from, n);
    memmove(in->data + to + n, in->data + to, in->len - to);
    memcpy(in->data + to, piece, n);
    in->len += n;
}

static void change(struct input *in)
{
    static void (*const ways[])(struct input *) = {flip, overwrite, overwrite, cut, splice};
    size_t times = 1 + random_below(4);

    while (times--)
        ways[random_below(sizeof(ways) / sizeof(ways[0]))](in);
}

/* ---- files --------------------------------------------------------------------------------- */

static void run_file(const char *path)
{
    struct input seed = load(path), in = seed;

    run(seed.data, seed.len);
    in.data = malloc(in.capacity);
    for (long i = 0; i < changes && in.data; i++) {
        memcpy(in.data, seed.data, seed.len);
        in.len = seed.len;
        change(&in);
        run(in.data, in.len);
    }
    free(in.data);
    free(seed.data);
}

static void run_directory(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    char file[4096];

    if (count < 0)
        give_up("cannot read", path);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.' &&
            (size_t)snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name) < sizeof(file))
            run_file(file);
        free(entries[i]);
    }
    free(entries);
}

static void run_path(const char *path)
{
    struct stat st;

    if (stat(path, &st))
        give_up("there is no", path);
    if (S_ISDIR(st.st_mode))
        run_directory(path);
    else
        run_file(path);
}

static void run_seeds(const char *program)
{
    const char *name = strrchr(program, '/'), *data = getenv("DP_TEST_DATA");
    char path[4096];

    name = name ? name + 1 : program;
    name = strstr(name, "fuzz_") ? strstr(name, "fuzz_") + 5 : name;
    snprintf(path, sizeof(path), "%s/fuzz/%s", data ? data : "tests/data", name);
    run_path(path);
}

static void quiet(void *user, enum dp_log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int main(int argc, char **argv)
{
    int i = 1;

    if (argc > 2 && !strcmp(argv[1], "-n")) {
        changes = atol(argv[2]);
        i = 3;
    }
    dp_log_set(quiet, NULL, DP_LOG_ERROR);
    set_alarm(500);
    if (i == argc)
        run_seeds(argv[0]);
    for (; i < argc; i++)
        run_path(argv[i]);
    set_alarm(0);
    printf("%ld inputs\n", runs);
    return runs ? 0 : 2;
}
