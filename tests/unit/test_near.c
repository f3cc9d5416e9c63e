/* Suggestions for unknown names. */
#include "base/near.h"

#include "support.h"

static const char *hint(const char *wanted, const char *const *names, char out[MGW_NEAR_HINT])
{
    mgw_near near = mgw_near_to(wanted);
    for (; *names; names++)
        mgw_near_offer(&near, *names);
    return mgw_near_hint(&near, out);
}

/* The distance by its definition, without a table. */
static unsigned slow_distance(const char *a, size_t n, const char *b, size_t m)
{
    if (n == 0 || m == 0)
        return (unsigned)(n + m);
    unsigned best = slow_distance(a, n - 1, b, m) + 1;
    unsigned other = slow_distance(a, n, b, m - 1) + 1;
    best = other < best ? other : best;
    other = slow_distance(a, n - 1, b, m - 1) + (a[n - 1] != b[m - 1]);
    best = other < best ? other : best;
    if (n > 1 && m > 1 && a[n - 1] == b[m - 2] && a[n - 2] == b[m - 1]) {
        other = slow_distance(a, n - 2, b, m - 2) + 1;
        best = other < best ? other : best;
    }
    return best;
}

static void distances(void **unused)
{
    (void)unused;
    unsigned state = 1;
    for (int round = 0; round < 3000; round++) {
        char words[2][6];
        size_t lengths[2];
        for (int w = 0; w < 2; w++) {
            state = state * 1103515245u + 12345u;
            lengths[w] = state >> 16 & 5;
            for (size_t i = 0; i < lengths[w]; i++) {
                state = state * 1103515245u + 12345u;
                words[w][i] = (char)('a' + (state >> 16) % 3);
            }
        }
        assert_int_equal(mgw_near_distance(words[0], lengths[0], words[1], lengths[1]),
                         slow_distance(words[0], lengths[0], words[1], lengths[1]));
    }
    assert_int_equal(mgw_near_distance("Optimal", 7, "oPTIMAL", 7), 0);
}

static void hints(void **unused)
{
    (void)unused;
    static const char *const names[] = {"optimal",
                                        "overlap",
                                        "wfbp",
                                        "resnet50-b32-fp32-h200",
                                        "resnet50-b64-fp32-h200",
                                        "resnet152-b64-fp32-h200",
                                        NULL};
    static const char *const many[] = {"a1", "a2", "a3", "a4", "a5", NULL};
    char out[MGW_NEAR_HINT];
    assert_string_equal(hint("optiml", names, out), "; did you mean 'optimal'?");
    assert_string_equal(hint("OPTIMAL", names, out), "; did you mean 'optimal'?");
    assert_string_equal(hint("pverlap", names, out), "; did you mean 'overlap'?");
    assert_string_equal(hint("wbfp", names, out), "; did you mean 'wfbp'?");
    assert_string_equal(hint("opt", names, out), "; did you mean 'optimal'?");
    assert_string_equal(hint("resnet50", names, out),
                        "; did you mean 'resnet50-b32-fp32-h200' or 'resnet50-b64-fp32-h200'?");
    assert_string_equal(hint("resnt50", names, out),
                        "; did you mean 'resnet50-b32-fp32-h200' or 'resnet50-b64-fp32-h200'?");
    assert_string_equal(hint("resnet152-b64", names, out),
                        "; did you mean 'resnet152-b64-fp32-h200'?");
    assert_string_equal(hint("a", many, out), "; did you mean 'a1', 'a2', 'a3', 'a4' ...?");
    static const char *const far[] = {"", "x", "no-such-thing", "best", "%s%n"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        assert_string_equal(hint(far[i], names, out), "");
    char endless[5000];
    memset(endless, 'a', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    assert_string_equal(hint(endless, names, out), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(distances), cmocka_unit_test(hints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
