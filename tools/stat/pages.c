/* SPDX-License-Identifier: Apache-2.0
 *
 * pages.c - a moment of a page: its rows, with their whole labels, summed where those begin alike.
 */
#include "config.h"

#include "stat/pages.h"

#include "clock.h"
#include "command.h"
#include "text.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum { TRIES_AT_ONCE = 50, TRIES = 3000 };

/* ---- labels ---------------------------------------------------------------------------------- */

/* As JSON and Prometheus want it, UTF-8, and without what a terminal would obey. */
static void clean(char *text)
{
    for (int n; *text; text += n) {
        n = text_character(text);
        if (!n) {
            *text = '?';
            n = 1;
        }
    }
}

static void add_label(const struct dp_page_row *row, struct stat_row *out)
{
    char *field = out->text + out->len, *end = field + DP_PAGE_LABEL - 1;

    memcpy(field, row->label, DP_PAGE_LABEL);
    *end = '\0';
    for (bool is_last = false; !is_last; field = end + 1) {
        end = field + strcspn(field, "\t");
        is_last = !*end;
        *end = '\0';
        clean(field);
        out->fields++;
    }
    out->len = (size_t)(field - out->text);
}

const char *stat_field(const struct stat_row *row, int field)
{
    const char *text = row->text;

    while (field--)
        text += strlen(text) + 1;
    return text;
}

bool stat_is_part(const struct stat_row *row, const struct stat_row *of)
{
    return row->len >= of->len && !memcmp(row->text, of->text, of->len);
}

/* ---- rows ------------------------------------------------------------------------------------ */

double stat_real(const struct stat_row *row, int value)
{
    double n;

    memcpy(&n, &row->values[value], sizeof(n));
    return n;
}

/* false: it is damaged. */
static bool read_row(const struct dp_page_mapped *m, const struct dp_page_kind *kind,
                     const struct dp_page_row *row, struct stat_row *out)
{
    const struct dp_page_row *before = NULL, *behind = NULL;
    const int64_t now = now_ns();
    uint64_t *value = out->values;

    for (unsigned c = 0; c < kind->column_count; c++)
        for (unsigned place = 0; place < kind->columns[c].places; place++, value++) {
            const enum dp_page_type type = (enum dp_page_type)kind->columns[c].type;
            *value = place < m->columns[c].places ? dp_page_value(m, row, c, place) : 0;
            if (type == DP_PAGE_SINCE)
                *value = *value && (int64_t)*value < now ? (uint64_t)now - *value : 0;
            else if ((type == DP_PAGE_BEFORE || type == DP_PAGE_BEHIND) && *value > m->rows)
                return false;
            else if (*value && type == DP_PAGE_BEFORE)
                before = dp_page_row_at(m, *value - 1);
            else if (*value && type == DP_PAGE_BEHIND)
                behind = dp_page_row_at(m, *value - 1);
        }
    out->len = 0;
    out->fields = 0;
    if (before)
        add_label(before, out);
    add_label(row, out);
    if (behind)
        add_label(behind, out);
    return true;
}

static void add_values(const struct dp_page_kind *kind, const struct stat_row *from, struct stat_row *to)
{
    int i = 0;

    for (unsigned c = 0; c < kind->column_count; c++)
        for (unsigned place = 0; place < kind->columns[c].places; place++, i++) {
            const double real = stat_real(to, i) + stat_real(from, i);
            if (kind->columns[c].type == DP_PAGE_REAL)
                memcpy(&to->values[i], &real, sizeof(real));
            else if (kind->columns[c].type != DP_PAGE_SINCE)
                to->values[i] += from->values[i];
            else if (from->values[i] > to->values[i])
                to->values[i] = from->values[i];
        }
}

const struct stat_row *stat_find(const struct stat_rows *rows, const struct stat_row *like)
{
    for (int i = 0; rows && i < rows->count; i++)
        if (rows->list[i].len == like->len && !memcmp(rows->list[i].text, like->text, like->len))
            return &rows->list[i];
    return NULL;
}

/* Add it by its first fields, if it has so many. false: no memory. */
static bool add_row(const struct dp_page_kind *kind, struct stat_rows *rows, struct stat_row row,
                    int fields)
{
    const int count = rows->count;

    if (row.fields < fields)
        return true;
    row.fields = fields;
    row.len = (size_t)(stat_field(&row, fields) - row.text);
    struct stat_row *same = (struct stat_row *)(uintptr_t)stat_find(rows, &row);
    if (same) {
        add_values(kind, &row, same);
        return true;
    }
    if (!(count & (count - 1))) { /* 1, 2, 4... */
        struct stat_row *more = realloc(rows->list, (count ? 2 * (size_t)count : 1) * sizeof(*more));
        if (!more)
            return false;
        rows->list = more;
    }
    rows->list[rows->count++] = row;
    return true;
}

/* ---- a moment of a page ---------------------------------------------------------------------- */

static const char *read_once(const struct dp_page_mapped *m, const struct stat_kind *kind,
                             struct stat_page *out)
{
    struct stat_row row;

    for (int i = 0; i < STAT_SUMS; i++)
        out->sums[i].count = 0;
    for (uint32_t r = 0; r < dp_page_rows(m); r++) {
        const struct dp_page_row *from = dp_page_row_at(m, r);
        row.use = dp_page_use(from);
        if (row.use < 2)
            continue;
        if (!read_row(m, kind->page, from, &row))
            return "is damaged: a row is of another one that it does not have";
        dp_page_fence();
        if (dp_page_use(from) != row.use)
            continue; /* it has ended meanwhile */
        if (kind->settle)
            kind->settle(&row);
        for (int i = 0; i < STAT_SUMS; i++)
            if (!add_row(kind->page, &out->sums[i], row, kind->fields[i]))
                return "cannot be read: no memory for its rows";
    }
    return NULL;
}

/* While rows come and go, again. NULL, or why there is nothing to be had. */
static const char *read_page(const struct dp_page_mapped *m, const struct stat_kind *kind,
                             struct stat_page *out)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    struct timespec now;

    memcpy(out->file, m->file, sizeof(out->file));
    out->pid = m->head->pid;
    out->opened_ns = m->head->opened_ns;
    memcpy(out->command, m->head->command, sizeof(out->command));
    out->command[sizeof(out->command) - 1] = '\0';
    clean(out->command);
    for (int i = 0; i < TRIES; i++) {
        const uint64_t since = dp_page_changes(m->head);
        const char *flaw = read_once(m, kind, out);
        clock_gettime(CLOCK_REALTIME, &now);
        out->read_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
        if (dp_page_is_steady(m->head, since))
            return flaw;
        if (i >= TRIES_AT_ONCE)
            nanosleep(&pause, NULL);
    }
    return "is being changed by a process that does not go on";
}

void stat_page_fini(struct stat_page *page)
{
    for (int i = 0; i < STAT_SUMS; i++)
        free(page->sums[i].list);
    *page = (struct stat_page){0};
}

/* ---- sums of pages --------------------------------------------------------------------------- */

static void merge(const struct stat_kind *kind, const struct stat_page *from, struct stat_page *to)
{
    for (int i = 0; i < STAT_SUMS; i++)
        for (int r = 0; r < from->sums[i].count; r++)
            (void)add_row(kind->page, &to->sums[i], from->sums[i].list[r], kind->fields[i]);
}

int stat_total(const struct dp_pages *pages, const struct stat_kind *kind, struct stat_page *out)
{
    int count = 0;

    for (int i = 0; i < pages->count; i++) {
        struct stat_page page = {.pid = 0};
        if (!read_page(&pages->list[i], kind, &page)) {
            merge(kind, &page, out);
            count++;
        }
        stat_page_fini(&page);
    }
    return count;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void refuse(void *list, const char *why)
{
    command_broke("%s", why);
    ((struct stat_list *)list)->refused++;
}

/* It must be this user's; the usual one need not be there. */
static int check_directory(const char *directory)
{
    char name[4096];
    struct stat st;
    const bool is_usual = !directory || !*directory;
    const int fd = open(dp_page_directory(directory, name, sizeof(name)),
                        O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int status = 0;

    if (fd < 0 && !(is_usual && errno == ENOENT))
        status = command_misused("cannot open the directory %s: %s", name, strerror(errno));
    else if (fd >= 0 && !fstat(fd, &st) && st.st_uid != geteuid())
        status = command_broke("%s belongs to user %u: only your own processes are shown", name,
                               (unsigned)st.st_uid);
    if (fd >= 0)
        close(fd);
    return status;
}

static int by_pid(const void *a, const void *b)
{
    const struct stat_page *x = a, *y = b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

static int by_use(const void *a, const void *b)
{
    const struct stat_row *x = a, *y = b;

    return (x->use > y->use) - (x->use < y->use);
}

static void sort(struct stat_list *list)
{
    qsort(list->pages, (size_t)list->count, sizeof(*list->pages), by_pid);
    for (int p = 0; p < list->count; p++)
        for (int i = 0; i < STAT_SUMS; i++) {
            struct stat_rows *rows = &list->pages[p].sums[i];
            if (rows->count)
                qsort(rows->list, (size_t)rows->count, sizeof(*rows->list), by_use);
        }
}

/* A page joins the list, or, where pages are one, the first of it. */
static void take(struct stat_list *list, const struct dp_page_mapped *m, const char *directory)
{
    struct stat_page page = {.pid = 0};
    const char *flaw = read_page(m, list->kind, &page);
    char name[4096];

    if (!flaw && (list->kind->has_process || !list->count)) {
        list->pages[list->count++] = page;
        return;
    }
    if (flaw)
        command_broke("%s/%s %s", dp_page_directory(directory, name, sizeof(name)), m->file, flaw);
    else
        merge(list->kind, &page, &list->pages[0]);
    list->refused += flaw != NULL;
    stat_page_fini(&page);
}

int stat_read(const struct stat_kind *kind, const char *directory, struct stat_list *out)
{
    struct dp_pages pages = {0};
    const int status = check_directory(directory);

    *out = (struct stat_list){.kind = kind};
    if (status)
        return status;
    dp_pages_map(&pages, kind->page, directory, NULL, refuse, out);
    out->pages = calloc(pages.count ? (size_t)pages.count : 1, sizeof(*out->pages));
    for (int i = 0; out->pages && i < pages.count; i++)
        take(out, &pages.list[i], directory);
    dp_pages_fini(&pages);
    if (!out->pages)
        return command_broke("no memory for processes");
    sort(out);
    return 0;
}

void stat_list_fini(struct stat_list *list)
{
    for (int i = 0; i < list->count; i++)
        stat_page_fini(&list->pages[i]);
    free(list->pages);
    *list = (struct stat_list){0};
}
