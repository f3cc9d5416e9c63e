/* JSON values compared with jansson's own reader: randomly mutated input is either equal or
 * rejected in both. */
#include "support.h"

#include <jansson.h>

#include "base/json.h"

static const char *const seeds[] = {
    "{\"a\": [1, -2, 3.5e-7, 1E+2, 0, -0, 0.5], \"b\": {\"c\": null, \"d\": true, \"e\": false}}",
    "[\"plain\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\", \"\"]",
    "[\"h\xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80\", {\"\xc3\xa9\": []}, {}]",
    "{\"name\": \"conv1.weight\", \"count\": 9223372036854775807, \"backward_s\": 1.7e308}",
    " [ [ [ ] , { \"x\" : [ 1 , 2 ] } ] , \"\xed\x9f\xbf\xee\x80\x80\" ]\n",
    "-9223372036854775808",
    "\"\\ud800\\u0000\\udc00\"",
};

static void compare(const char *text, size_t size)
{
    json_error_t where;
    json_t *theirs = json_loadb(text, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &where);
    json_t *ours = NULL;
    mgw_json_fault fault = {0};
    mgw_status status = mgw_json_parse(text, size, NULL, &ours, &fault);
    if ((theirs == NULL) != (status != MGW_OK) || (theirs && !json_equal(theirs, ours)))
        fail_msg("'%.*s': jansson: %s; here: %s", (int)size, text, theirs ? "good" : where.text,
                 status ? fault.text : "good");
    if (status) {
        assert_int_equal(status, MGW_ERR_INPUT);
        assert_null(ours);
        assert_true(fault.line >= 1 && fault.text[0]);
    }
    json_decref(theirs);
    json_decref(ours);
}

/* Bytes that mean something, and any. */
static char random_byte(uint64_t *state)
{
    static const char special[] = "{}[]\",:\\ue0-+.19dD8cCtn \n\xc3\xa9\xed\xf4\x80\x9f\xbf";
    return random_below(state, 4) ? special[random_below(state, sizeof special - 1)]
                                  : (char)random_below(state, 256);
}

static void mutate(uint64_t *state, char *text, size_t *size, size_t room)
{
    size_t at = random_below(state, *size + 1);
    switch (random_below(state, 4)) {
    case 0: /* another byte */
        if (at < *size)
            text[at] = random_byte(state);
        break;
    case 1: /* one more */
        if (*size < room) {
            memmove(text + at + 1, text + at, *size - at);
            text[at] = random_byte(state);
            ++*size;
        }
        break;
    case 2: /* one less */
        if (at < *size) {
            memmove(text + at, text + at + 1, *size - at - 1);
            --*size;
        }
        break;
    default: /* the end is missing */
        if (!random_below(state, 8))
            *size = at;
    }
}

static void the_same_to_jansson(void **unused)
{
    (void)unused;
    uint64_t state = 20;
    char room[256];
    for (int i = 0; i < 300000; i++) {
        const char *seed = seeds[random_below(&state, sizeof seeds / sizeof *seeds)];
        size_t size = strlen(seed);
        memcpy(room, seed, size); /* NOLINT(bugprone-not-null-terminated-result): it has a size */
        for (uint64_t changes = random_below(&state, 4); changes > 0; changes--)
            mutate(&state, room, &size, sizeof room);
        char *exact = malloc(size ? size : 1); /* so that reading behind it is noticed */
        assert_non_null(exact);
        memcpy(exact, room, size);
        compare(exact, size);
        free(exact);
    }
}

static void lines_are_counted(void **unused)
{
    (void)unused;
    json_t *value = NULL;
    mgw_json_fault fault = {0};
    const char *text = "[1,\n2,\n\n3,, 4]";
    assert_int_equal(mgw_json_parse(text, strlen(text), NULL, &value, &fault), MGW_ERR_INPUT);
    assert_int_equal(fault.line, 4);
    size_t used = 0;
    assert_int_equal(mgw_json_parse(" [1] x", 6, &used, &value, &fault), MGW_OK);
    assert_int_equal(used, 4);
    json_decref(value);
}

static void nesting_has_an_end(void **unused)
{
    (void)unused;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP);
    assert_non_null(text);
    json_t *value = NULL;
    mgw_json_fault fault = {0};
    memset(text, '[', DEEP);
    assert_int_equal(mgw_json_parse(text, DEEP, NULL, &value, &fault), MGW_ERR_INPUT);
    assert_contains(fault.text, "brackets");
    memset(text + 500, ']', 500);
    assert_int_equal(mgw_json_parse(text, 1000, NULL, &value, &fault), MGW_OK);
    json_decref(value);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_to_jansson),
        cmocka_unit_test(lines_are_counted),
        cmocka_unit_test(nesting_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
