/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_shared.c - messages from and into memory that the library shares (dualpipe/memory.h):
 * which side copies them, where neither has the right to access the other process; how the memory
 * is announced, and how it is released. (test_shared.c has the memory itself.)
 */
#include "cmocka_all.h"

#include "shm_pair.h"

#include "base/shared.h"
#include "wire/sockets.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char out[BIG], in[BIG];

/* In a child, which exits with 77 if the kernel cannot be made to refuse. */
static void must(void (*fn)(void))
{
    int status = run_in_child(fn);

    if (status == 77)
        skip_because("this system allows no seccomp filter, which would deny copies");
    assert_int_equal(status, 0);
}

/* ---- which side copies ----------------------------------------------------------------------- */

CASE(each_end_shared_or_not)
{
    char *from = new_shared(BIG), *to = new_shared(BIG);
    struct pair p = make_pair();
    const bool right = goes_straight(&p);

    assert_int_equal(send_sizes(&p, from, to), LENS);
    assert_int_equal(send_sizes(&p, from, in), LENS);
    assert_int_equal(send_sizes(&p, out, to), LENS);
    assert_int_equal(send_sizes(&p, out, in), right ? LENS : 0);
    free_pair(&p);
    assert_int_equal(dp_shared_free(from), 0);
    assert_int_equal(dp_shared_free(to), 0);
}

PART_CASE(no_right_is_needed, must(part))
{
    deny_copies();
    char *from = new_shared(BIG), *to = new_shared(BIG);
    ENDED_BY(free_pair) struct pair p = make_pair();

    assert_false(goes_straight(&p));
    /* The first one goes through the ring: that the receiver's memory is shared shows with it. */
    assert_int_equal(send_sizes(&p, out, to), LENS - 1);
    assert_int_equal(send_sizes(&p, out, to), LENS);
    assert_int_equal(send_sizes(&p, from, in), LENS);
    assert_int_equal(send_sizes(&p, from, to), LENS);
    assert_int_equal(send_sizes(&p, out, in), 0);
    /* Refusals are not held against what is shared. */
    assert_int_equal(send_sizes(&p, from, in), LENS);
}

CASE(the_user_may_forbid_it)
{
    char *from = new_shared(BIG), *to = new_shared(BIG);
    setenv("DUALPIPE_WIRE_CMA", "0", 1);
    struct pair p = make_pair();
    unsetenv("DUALPIPE_WIRE_CMA");

    assert_int_equal(send_sizes(&p, from, to), 0);
    free_pair(&p);
    dp_shared_free(from);
    dp_shared_free(to);
}

PART_CASE(either_side_alone_moves_all_chunks, must(part))
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();

    move_alone(&p, new_shared(BIG), new_shared(BIG));
}

PART_CASE(a_sender_that_sleeps_is_woken_to_help, must(part))
{
    deny_copies();
    char *from = new_shared(BIG), *to = new_shared(BIG);
    ENDED_BY(free_pair) struct pair p = make_pair();
    struct dp_wire_request send, receive;
    struct pollfd fd;

    dp_wire_isend(p.a, 1, from, BIG, &send);
    assert_true(p.a->ops->arm(p.a, &fd)); /* it is not accepted yet */
    dp_wire_irecv(p.b, to, BIG, &receive);
    assert_int_equal(poll(&fd, 1, 1000), 1); /* rung awake */
    p.a->ops->disarm(p.a, fd.revents);
    assert_false(p.a->ops->arm(p.a, &fd)); /* there are chunks */
    p.a->ops->disarm(p.a, 0);
    finish(&p, &send);
    finish(&p, &receive);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

enum { MANY = 3 * DP_SHM_MAPPINGS, PIECE = 256 << 10 };

PART_CASE(more_pieces_than_a_peer_has_mapped_at_a_time, must(part))
{
    deny_copies();
    struct pair p = make_pair();
    char *from[MANY], *to[MANY];

    for (unsigned i = 0; i < MANY; i++) {
        from[i] = new_shared(PIECE);
        to[i] = new_shared(PIECE);
    }
    for (unsigned i = 0; i < 4 * MANY; i++)
        send_one(&p, from[i * 7 % MANY], to[i * 5 % MANY], PIECE, i);
    assert_int_equal(dp_shm_of(p.a)->by_cma, 4 * MANY);
    unsigned mapped = 0;
    for (int i = 0; i < DP_SHM_MAPPINGS; i++)
        mapped += dp_shm_of(p.b)->mappings.theirs[i].at != NULL;
    assert_int_equal(mapped, DP_SHM_MAPPINGS);
    free_pair(&p);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(!dp_shared_free(from[i]) && !dp_shared_free(to[i]));
}

/* So many that whatever the other end had mapped before, it has no more. */
static void show_others(struct dp_wire *from, struct dp_wire *to)
{
    struct dp_shm_wire *w = dp_shm_of(from);
    struct dp_shm_location place;

    for (int i = 0; i < DP_SHM_MAPPINGS; i++)
        assert_true(dp_shm_mappings_name(&w->mappings, w->fd, new_shared(PIECE), PIECE, &place));
    dp_shm_look(dp_shm_of(to));
}

static void pull_what_is_mapped_no_more(void)
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();
    char *from = new_shared(BIG);
    struct dp_wire_request send, receive;

    fill(from, BIG, 1);
    dp_wire_isend(p.a, 1, from, BIG, &send);
    dp_wire_irecv(p.b, in, BIG, &receive);
    assert_true(dp_shm_of(p.b)->is_taken && dp_shm_of(p.b)->taken.done);
    show_others(p.a, p.b);
    finish(&p, &receive);
    finish(&p, &send);
    assert_true(!send.status && !receive.status && is_filled(in, BIG, 1));
    assert_int_equal(dp_shm_of(p.a)->by_cma, 0);
    send_one(&p, from, in, BIG, 2);
}

/* All was copied while it was mapped: it is not sent again. */
static void push_what_is_mapped_no_more(void)
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();
    char *to = new_shared(BIG);
    struct dp_wire_request send, receive;

    send_one(&p, out, to, BIG, 1);
    fill(out, BIG, 2);
    dp_wire_isend(p.a, 2, out, BIG, &send);
    dp_wire_irecv(p.b, to, BIG, &receive);
    assert_true(dp_shm_of(p.b)->is_taken);
    while (dp_cma_has_chunk(&dp_shm_of(p.a)->offered))
        progress(p.a);
    show_others(p.b, p.a);
    progress(p.a);
    finish(&p, &receive);
    finish(&p, &send);
    assert_true(!send.status && !receive.status && is_filled(to, BIG, 2));
    assert_int_equal(dp_shm_of(p.a)->by_cma, 1);
}

CASE(a_message_whose_piece_is_mapped_no_more_comes_all_the_same)
{
    must(pull_what_is_mapped_no_more);
    must(push_what_is_mapped_no_more);
}

CASE(what_is_freed_is_gone_although_the_peer_has_it_mapped)
{
    char *from = new_shared(BIG);
    struct pair p = make_pair();
    struct dp_shared_place place;
    struct stat st;

    send_one(&p, from, in, BIG, 1);
    assert_true(dp_shared_find(from, BIG, &place));
    int fd = dup(place.fd);
    assert_true(!fstat(fd, &st) && st.st_blocks > 0);
    assert_int_equal(dp_shared_free(from), 0);
    assert_true(!fstat(fd, &st) && st.st_blocks == 0);
    close(fd);
    /* And another one at the same address is another one. */
    from = new_shared(BIG);
    send_one(&p, from, in, BIG, 2);
    free_pair(&p);
    dp_shared_free(from);
}

PART_CASE(where_it_cannot_be_mapped_the_ring_serves, must(part))
{
    deny_copies();
    char *from = new_shared(BIG);
    ENDED_BY(free_pair) struct pair p = make_pair();
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 0; /* no file can be received */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    send_one(&p, from, in, BIG, 1);
    assert_int_equal(dp_shm_of(p.a)->by_cma, 0);
}

/* A mapping announcement as a peer would write it, with any file. */
static void receive_all_of(struct dp_shm_mappings *maps, int fd, uint32_t number, uint64_t bytes)
{
    const struct dp_shm_announcement letter = {
        .kind = 1, .slot = 3, .number = number, .bytes = bytes};

    maps->passed_fd = fd;
    dp_shm_mappings_receive(maps, (const char *)&letter, 5);
    dp_shm_mappings_receive(maps, (const char *)&letter + 5, sizeof(letter) - 5);
    assert_int_equal(maps->passed_fd, -1);
}

CASE(only_sealed_memory_of_the_right_size_is_mapped)
{
    enum { LEN = 8192 };
    const struct dp_shm_location place = {.announcement = 1, .slot = 3};
    struct dp_shm_mappings mappings;
    FILE *f = tmpfile();
    int fd;

    dp_shm_mappings_init(&mappings);
    receive_all_of(&mappings, -1, 1, LEN);
    assert_null(dp_shm_mappings_find(&mappings, &place, 1));
    assert_true(f && !ftruncate(fileno(f), LEN));
    receive_all_of(&mappings, dup(fileno(f)), 1, LEN);
    assert_null(dp_shm_mappings_find(&mappings, &place, 1));
    fclose(f);
    assert_int_equal(dp_shared_file(LEN, &fd), 0);
    receive_all_of(&mappings, dup(fd), 1, LEN + 1);
    assert_null(dp_shm_mappings_find(&mappings, &place, 1));
    receive_all_of(&mappings, dup(fd), 1, LEN);
    assert_non_null(dp_shm_mappings_find(&mappings, &place, LEN));
    close(fd);
    dp_shm_mappings_fini(&mappings);
}

CASE(a_place_that_was_not_shown_is_nowhere)
{
    enum { LEN = 8192 };
    const struct dp_shm_location none[] = {
        {0},
        {.announcement = 2, .slot = 3},
        {.announcement = 1, .slot = 2},
        {.announcement = 1, .slot = 3, .offset = 1},
        {.announcement = 1, .slot = 3, .offset = UINT64_MAX},
        {.announcement = 1, .slot = UINT32_MAX},
    };
    const struct dp_shm_location last = {.announcement = 1, .slot = 3, .offset = LEN - 1};
    struct dp_shm_mappings mappings;
    int fd;

    dp_shm_mappings_init(&mappings);
    assert_int_equal(dp_shared_file(LEN, &fd), 0);
    receive_all_of(&mappings, fd, 1, LEN);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_null(dp_shm_mappings_find(&mappings, &none[i], LEN));
    assert_non_null(dp_shm_mappings_find(&mappings, &last, 1));
    assert_null(dp_shm_mappings_find(&mappings, &last, SIZE_MAX));
    dp_shm_mappings_fini(&mappings);
}

static char first_mapped(struct dp_shm_wire *w, const struct dp_shm_location *place)
{
    const char *at = dp_shm_mappings_find(&w->mappings, place, PIECE);

    return at ? *at : '-';
}

/* However many rings are before them, whichever bytes of them are read together. */
CASE(announcements_among_wakeups_are_read_whole)
{
    char *pieces[2] = {new_shared(PIECE), new_shared(PIECE)};

    *pieces[0] = 'x';
    *pieces[1] = 'y';
    for (int rings = 40; rings < 72; rings++) {
        ENDED_BY(free_pair) struct pair p = make_pair();
        struct dp_shm_wire *a = dp_shm_of(p.a), *b = dp_shm_of(p.b);
        struct dp_shm_location places[2];
        for (int i = 0; i < rings; i++)
            assert_int_equal(dp_fds_send(a->fd, "", 1, -1), 1);
        for (int i = 0; i < 2; i++)
            assert_true(dp_shm_mappings_name(&a->mappings, a->fd, pieces[i], PIECE, &places[i]));
        dp_shm_look(b);
        assert_int_equal(b->mappings.received, 2);
        assert_int_equal(first_mapped(b, &places[0]), 'x');
        assert_int_equal(first_mapped(b, &places[1]), 'y');
    }
    dp_shared_free(pieces[0]);
    dp_shared_free(pieces[1]);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void drop_shared_receive(void)
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();

    drop_receive(&p, new_shared(BIG), new_shared(BIG));
}

static void free_shared(char *at)
{
    assert_int_equal(dp_shared_free(at), 0);
}

static void drop_shared_send(void)
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();

    drop_send(&p, new_shared(BIG), new_shared(BIG), free_shared);
}

CASE(no_peer_accesses_what_was_dropped_in_the_middle)
{
    must(drop_shared_receive);
    must(drop_shared_send);
}

/* The child is killed; what it had shared stays readable, and what it had not finished never comes. */
static void kill_in_the_middle(bool child_sends)
{
    const int64_t until = dp_now_ns() + LONG_NS;
    struct dp_wire_address address;
    struct pair p = {.listener = NULL};
    struct dp_wire_request req;

    deny_copies();
    assert_int_equal(dp_wire_shm.listen(&(struct dp_wire_config){0}, &p.listener, &address), 0);
    pid_t child = start_child(&address, NULL, child_sends);
    char *buf = new_shared(HUGE_MESSAGE);
    p.b = accept_one(p.listener, NULL);
    if (child_sends)
        dp_wire_irecv(p.b, buf, HUGE_MESSAGE, &req);
    else
        dp_wire_isend(p.b, 1, buf, HUGE_MESSAGE, &req);
    while (!has_moved_some(dp_shm_of(p.b)) && dp_now_ns() < until)
        progress(p.b);
    assert_int_equal(req.status, DP_EAGAIN);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    finish(&p, &req);
    if (req.status) /* either it was all there by then, or never will be */
        assert_int_equal(req.status, DP_ECOMM);
    free_pair(&p);
    assert_int_equal(dp_shared_free(buf), 0);
}

static void kill_sender(void)
{
    kill_in_the_middle(true);
}

static void kill_receiver(void)
{
    kill_in_the_middle(false);
}

CASE(a_process_killed_in_the_middle_of_a_message_does_no_harm)
{
    must(kill_sender);
    must(kill_receiver);
}

/* The child has its parent's memory, but is not the process that the peer has met. */
/* ---- loans ----------------------------------------------------------------------------------- */

static char *use_lent(struct pair *p, const struct dp_wire_loan *loan, size_t len)
{
    return p->b->ops->loans->use(p->b, loan, len);
}

CASE(what_is_lent_is_worked_on_in_place_until_its_owner_ends_that)
{
    const struct dp_wire_loan_ops *loans = dp_wire_shm.loans;
    struct dp_wire_loan loan = {{0}}, none = {{0}}, other;
    char *mine = new_shared(BIG);
    struct pair p = make_pair();

    assert_false(loans->lend(p.a, out, BIG, &loan));
    assert_null(use_lent(&p, &none, 1));
    assert_true(loans->lend(p.a, mine, BIG, &loan));
    assert_false(loans->lend(p.a, mine, BIG, &other));
    char *there = use_lent(&p, &loan, BIG);
    assert_non_null(there);
    assert_null(use_lent(&p, &loan, BIG)); /* it is in use */
    memset(there, 0x5A, BIG);
    loans->leave(p.b);
    assert_int_equal(mine[BIG - 1], 0x5A);
    assert_null(use_lent(&p, &loan, (size_t)BIG << 8)); /* more than there is */
    assert_non_null(use_lent(&p, &loan, 1));
    loans->leave(p.b);
    loans->end(p.a);
    loans->end(p.a);
    assert_null(use_lent(&p, &loan, 1));
    assert_true(loans->lend(p.a, mine, BIG, &loan));
    dp_wire_fail(p.a, DP_EABORTED, "a test");
    assert_null(use_lent(&p, &loan, 1));
    free_pair(&p);
    assert_int_equal(dp_shared_free(mine), 0);
}

CASE(what_is_lent_stays_mapped_however_much_else_is_shown)
{
    enum { OTHERS = 2 * DP_SHM_MAPPINGS };
    const struct dp_wire_loan_ops *loans = dp_wire_shm.loans;
    char *mine = new_shared(BIG), *others[OTHERS], *to = new_shared(BIG);
    struct dp_wire_loan loan;
    struct pair p = make_pair();

    assert_true(loans->lend(p.a, mine, BIG, &loan));
    for (int i = 0; i < OTHERS; i++) {
        others[i] = new_shared(DP_SHM_LARGE);
        send_one(&p, others[i], to, DP_SHM_LARGE, (unsigned)i);
    }
    assert_non_null(use_lent(&p, &loan, BIG));
    loans->leave(p.b);
    loans->end(p.a);
    free_pair(&p);
    for (int i = 0; i < OTHERS; i++)
        assert_int_equal(dp_shared_free(others[i]), 0);
    assert_int_equal(dp_shared_free(mine), 0);
    assert_int_equal(dp_shared_free(to), 0);
}

CASE(a_child_that_inherits_a_wire_goes_through_the_ring)
{
    char *from = new_shared(BIG), *to = new_shared(BIG);
    struct pair p = make_pair();
    struct dp_wire_request send, receive;
    int status;

    fill(from, BIG, 1);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dp_wire_irecv(p.b, to, BIG, &receive);
        while (receive.status == DP_EAGAIN)
            progress(p.b);
        fill(in, BIG, 2);
        dp_wire_isend(p.b, 1, in, BIG, &send);
        while (send.status == DP_EAGAIN)
            progress(p.b);
        _exit(receive.status || send.status || dp_shm_of(p.b)->mappings.announcements);
    }
    dp_wire_close(p.b);
    p.b = NULL;
    dp_wire_isend(p.a, 1, from, BIG, &send);
    finish(&p, &send);
    dp_wire_irecv(p.a, in, BIG, &receive);
    finish(&p, &receive);
    assert_true(!send.status && !receive.status);
    assert_true(is_filled(to, BIG, 1)); /* the child shares it with us */
    assert_true(is_filled(in, BIG, 2));
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(dp_shm_of(p.a)->by_cma, 0);
    free_pair(&p);
    dp_shared_free(from);
    dp_shared_free(to);
}
