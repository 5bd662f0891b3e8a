/* SPDX-License-Identifier: Apache-2.0
 *
 * test_numbers.c - in a process whose locale writes "1,5", files are read and written as
 * everywhere. The locale is made here, so that none need be installed.
 */
#include "config.h" /* asprintf, nftw */

#include "cmocka_all.h"
#include "same_topology.h"
#include "scratch.h"
#include "unit/topology/topology_case.h"
#include "unit/microbatch/tree.h"

#include "base/text.h"

#include <dualpipe/placement.h>
#include <dualpipe/tuning.h>

#include <locale.h>

/* Only A has a lower-case letter: Turkish is similar, with I. */
static const char locale_source[] = "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\n"
                                    "grouping 3;3\nEND LC_NUMERIC\n"
                                    "LC_CTYPE\ntoupper (<U0061>,<U0041>)\ntolower (<U0041>,<U0061>)\n"
                                    "END LC_CTYPE\n";
static bool has_comma;

/* localedef warns of the categories that are left out, which its status shows; what counts is
 * whether the C library accepts the locale. */
static bool use_comma(char *directory)
{
    char *path, *command;

    assert_true(asprintf(&path, "%s/comma.src", directory) > 0);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(locale_source, f);
    fclose(f);
    assert_true(asprintf(&command, "PATH=$PATH:/usr/bin localedef -c -i '%s' '%s/comma' "
                         ">/dev/null 2>&1", path, directory) > 0);
    int status = system(command); /* NOLINT: the command is constant */
    (void)status;
    free(command);
    free(path);
    setenv("LOCPATH", directory, 1);
    return setlocale(LC_ALL, "comma") && !strcmp(localeconv()->decimal_point, ",");
}

static int enter(void **state)
{
    char directory[SCRATCH_LEN];

    assert_true(scratch_directory(directory, "locale"));
    has_comma = use_comma(directory);
    tree_remove(strdup(directory));
    return 0;
}

#define NEEDS_COMMA() \
    do { \
        if (!has_comma) { \
            skip_because("localedef makes no locale here that the C library takes"); \
            return; \
        } \
    } while (0)

/* So that the tests below show something. */
CASE(the_locale_has_a_comma)
{
    char text[16];

    NEEDS_COMMA();
    snprintf(text, sizeof(text), "%g", 1.5);
    assert_string_equal(text, "1,5");
    assert_true(strtod("1.5", NULL) == 1);
}

CASE(numbers_have_a_point)
{
    char text[16], *end;

    NEEDS_COMMA();
    assert_int_equal(dp_snprintf(text, sizeof(text), "%g", 1.5), 3);
    assert_string_equal(text, "1.5");
    assert_true(dp_strtod("1.5,7", &end) == 1.5);
    assert_string_equal(end, ",7");
    assert_string_equal(localeconv()->decimal_point, ",");
    locale_t before = dp_point_begin();
    assert_string_equal(localeconv()->decimal_point, ".");
    dp_point_end(before);
    assert_string_equal(localeconv()->decimal_point, ",");
}

CASE(sentences_have_a_point)
{
    NEEDS_COMMA();
    OWNED(dp_topology) *t = topology_made("gpu:2");
    t->links[0].bytes_per_ns = -1.5;
    expect_error(dp_topo_check(t), DP_EINVAL, "-1.5 GB/s");
}

CASE(descriptions_and_json)
{
    NEEDS_COMMA();
    OWNED(dp_topology) *t = topology_made("gpu:2 nvlink=pair:3x26.5 nic:1 net=2.5Gb/s memory=1.5G");
    char *text = topology_written(t, DP_TOPOLOGY_JSON);
    struct dp_topology *back = topology_said(text, DP_TOPOLOGY_JSON);

    assert_true(topology_way(t, "gpu0", "gpu1").bytes_per_ns == 79.5);
    assert_true(t->ports[0].bytes_per_ns == 0.3125);
    assert_int_equal(t->nodes[topology_node(t, "numa0")].memory_bytes, 3 << 29);
    assert_non_null(strstr(text, "\"bytes_per_ns\": 79.5"));
    assert_true(is_same_topology(t, back));
    free(text);
    dp_topology_free(back);
}

CASE(captured_machines)
{
    NEEDS_COMMA();
    OWNED(dp_topology) *t = topology_unpacked("slow");
    struct dp_topo_path p = topology_way(t, "mlx4_0", "numa0");

    assert_int_equal(t->links[p.links[0]].gen, 1);
    assert_true(fabs(p.bytes_per_ns - 0.25) < 1e-6);
    assert_true(fabs(t->ports[0].bytes_per_ns - 0.3125) < 1e-6);
}

CASE(files_of_nccl)
{
    NEEDS_COMMA();
#ifdef HAVE_EXPAT
    struct dp_topology *t = topology_said(
        "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x020000\" "
        "link_speed=\"2.5 GT/s PCIe\" link_width=\"4\"><nic><net name=\"eth0\" dev=\"0\"/></nic>"
        "</pci></cpu></system>", DP_TOPOLOGY_NCCL_XML);
    assert_true(topology_way(t, "nic0", "numa0").bytes_per_ns == 1);
    dp_topology_free(t);
#else
    skip_because("this build has no expat");
#endif
}

CASE(files_of_hwloc)
{
    NEEDS_COMMA();
#ifdef HAVE_HWLOC
    char *text = topology_file("hwloc-switches.xml");
    struct dp_topology *t = topology_said(text, DP_TOPOLOGY_HWLOC_XML);

    assert_true(fabs(topology_way(t, "gpu0", "numa0").bytes_per_ns - 31.507692) < 1e-4);
    free(text);
    dp_topology_free(t);
#else
    skip_because("this build has no hwloc");
#endif
}

CASE(placements)
{
    NEEDS_COMMA();
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 2};
    OWNED(dp_topology) *t = topology_made("gpu:2 nic:1 nvlink=pair:1x26.5");
    OWNED(dp_schedule) *schedule = NULL;
    OWNED(dp_placement) *p = NULL;
    OWNED(dp_assignment) *assignment = NULL;
    FREED char *text = NULL;
    size_t len;

    assert_int_equal(dp_schedule_new(&spec, &schedule), 0);
    assert_int_equal(dp_placement_new(&(struct dp_placement_spec){
        .topology = t, .schedule = schedule, .activation_bytes = 1e6 + 0.5}, &p), 0);
    assert_int_equal(dp_placement_write(p, t, &text, &len), 0);
    assert_int_equal(dp_assignment_read(text, len, "made", &assignment), 0);
    assert_true(assignment->intra_gbs == 26.5 && assignment->flows[0].bytes == 2e6 + 1);
}

CASE(tables)
{
    static const char table[] = "collective,min_bytes,max_bytes,algorithm,protocol,time_us\n"
                                "AllReduce,0,1024,RING,LL,12.75\n"; /* any letters */

    NEEDS_COMMA();
    OWNED(dp_tuning_table) *back = NULL;
    OWNED(dp_tuning_table) *t = NULL;
    FREED char *text = NULL;
    size_t len;
    assert_int_equal(dp_tuning_table_read(table, sizeof(table) - 1, "made", &t), 0);
    assert_int_equal(dp_tuning_table_write(t, &text, &len), 0);
    assert_non_null(strstr(text, "12.75"));
    assert_int_equal(dp_tuning_table_read(text, len, "made", &back), 0);
    assert_true(back->rules[0].time_us == 12.75);
}

CASE(links)
{
    struct dp_tuning_links links;
    char text[DP_TUNING_LINKS_LEN];

    NEEDS_COMMA();
    assert_int_equal(dp_tuning_links_parse("intra=62.5,inter=12.5,inter_us=0.5", &links), 0);
    assert_true(links.intra_gbs == 62.5 && links.inter_gbs == 12.5 && links.inter_us == 0.5);
    assert_string_equal(dp_tuning_links_text(&links, text), "intra=62.5,inter=12.5,inter_us=0.5");
}

int main(void)
{
    topology_quietly();
    return run_cases(enter, NULL);
}
