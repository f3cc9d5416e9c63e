/* Noted gradients, and the hook that notes them; a small interpreter replaces Python. */
#include <stdbool.h>
#include <string.h>

#include "support.h"

enum { TENSORS = 5 };

static uint8_t seen[TENSORS];
static double at_s[TENSORS];
static uint32_t left[2];
static const uint32_t message[TENSORS] = {0, 0, MGW_ALONE, 1, 1};

static mgw_notes notes_of_a_step(void)
{
    memset(seen, 0, sizeof seen);
    memset(at_s, 0, sizeof at_s);
    left[0] = left[1] = 2;
    return (mgw_notes){.on = true, .seen = seen, .at_s = at_s, .message = message, .left = left};
}

static void test_a_step(void **unused)
{
    (void)unused;
    mgw_notes notes = notes_of_a_step();
    assert_int_equal(mgw_notes_take(&notes, 3), MGW_NOTE_TAKEN); /* in any order */
    assert_int_equal(mgw_notes_take(&notes, 1), MGW_NOTE_TAKEN);
    assert_int_equal(mgw_notes_take(&notes, 2), MGW_NOTE_OTHER);
    assert_int_equal(seen[2], MGW_UNSEEN);
    assert_int_equal(mgw_notes_take(&notes, 0), MGW_NOTE_LAST);
    assert_int_equal(mgw_notes_take(&notes, 3), MGW_NOTE_OTHER); /* twice */
    assert_int_equal(left[1], 1);
    assert_true(at_s[3] > 0 && at_s[1] >= at_s[3] && at_s[0] >= at_s[1] && at_s[4] == 0);
    seen[4] = MGW_HANDED_OVER;
    assert_int_equal(mgw_notes_take(&notes, 4), MGW_NOTE_OTHER);
    notes.on = false;
    seen[4] = MGW_UNSEEN;
    assert_int_equal(mgw_notes_take(&notes, 4), MGW_NOTE_OTHER);
}

/* ---- The interpreter: objects have counts; integers are pointers ---- */

typedef struct object {
    int count;
    void *pointer;
} object;

static object none, heard, marked, stream;
static object listener, marker, current; /* functions */
static bool fails;
static int marks;

static void retain(void *o)
{
    ((object *)o)->count++;
}

static void release(void *o)
{
    ((object *)o)->count--;
}

static void *pointer_of(void *integer)
{
    return ((object *)integer)->pointer;
}

static void *call(void *function, void *arguments)
{
    if (fails)
        return NULL;
    object *result = function == &current ? &stream : function == &marker ? &marked : &heard;
    assert_true(function == &current ? !arguments : arguments != NULL);
    result->count++;
    marks += result == &marked;
    return result;
}

static mgw_notes hooked(mgw_hook_of *hooks)
{
    static char arguments[TENSORS];
    mgw_hook_lend(&(mgw_python){&none, retain, release, pointer_of, call});
    none.count = heard.count = marked.count = stream.count = 0;
    fails = false;
    marks = 0;
    for (unsigned i = 0; i < TENSORS; i++)
        hooks[i] = (mgw_hook_of){NULL, i, &listener, &arguments[i]};
    return notes_of_a_step();
}

static void *run(mgw_hook_of *hooks, mgw_notes *notes, unsigned id)
{
    hooks[id].notes = notes;
    return mgw_hook(&(object){.pointer = &hooks[id]}, NULL);
}

static void test_python_hears_of_messages(void **unused)
{
    (void)unused;
    mgw_hook_of hooks[TENSORS];
    mgw_notes notes = hooked(hooks);
    assert_ptr_equal(run(hooks, &notes, 0), &none);
    assert_int_equal(none.count, 1);                 /* the caller's */
    assert_ptr_equal(run(hooks, &notes, 2), &heard); /* alone */
    assert_ptr_equal(run(hooks, &notes, 1), &heard); /* the last one */
    assert_ptr_equal(run(hooks, &notes, 1), &heard); /* twice */
    notes.on = false;
    assert_ptr_equal(run(hooks, &notes, 3), &heard);
    assert_int_equal(seen[3], MGW_UNSEEN);
    fails = true; /* an exception */
    assert_null(run(hooks, &notes, 3));
}

static void test_other_streams(void **unused)
{
    (void)unused;
    mgw_hook_of hooks[TENSORS];
    mgw_notes notes = hooked(hooks);
    int here = 0;
    int there = 0;
    notes.current = &current;
    notes.stream = &here;
    stream.pointer = &here;
    assert_ptr_equal(run(hooks, &notes, 0), &none);
    stream.pointer = &there;
    assert_ptr_equal(run(hooks, &notes, 1), &heard);
    assert_int_equal(seen[1], MGW_UNSEEN);
    assert_int_equal(left[0], 1);
    assert_int_equal(stream.count, 0); /* what was returned is let go */
    fails = true;
    assert_null(run(hooks, &notes, 3));
    assert_int_equal(seen[3], MGW_UNSEEN);
}

static void test_marks(void **unused)
{
    (void)unused;
    mgw_hook_of hooks[TENSORS];
    mgw_notes notes = hooked(hooks);
    notes.mark = &marker;
    notes.sampled = 3;
    notes.share = 1;
    for (unsigned i = 0; i < TENSORS; i++)
        run(hooks, &notes, i);
    assert_int_equal(marks, 2);        /* 1 and 4 */
    assert_int_equal(marked.count, 0); /* what was returned is let go */
    notes = hooked(hooks);
    notes.mark = &marker;
    notes.sampled = 3;
    notes.share = 1;
    fails = true;
    assert_ptr_equal(run(hooks, &notes, 3), &none); /* is not sampled */
    assert_null(run(hooks, &notes, 1));             /* is */
}

static void test_copies(void **unused)
{
    (void)unused;
    char to[3][4] = {"abc", "def", "ghi"};
    void *const targets[] = {to[0], to[1], to[2]};
    const void *const from[] = {"xy", NULL, "z"};
    mgw_copy_all(3, targets, from, (const size_t[]){2, 4, 1});
    assert_string_equal(to[0], "xyc");
    assert_string_equal(to[1], "def");
    assert_string_equal(to[2], "zhi");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step),        cmocka_unit_test(test_python_hears_of_messages),
        cmocka_unit_test(test_other_streams), cmocka_unit_test(test_marks),
        cmocka_unit_test(test_copies),
    };
    return cmocka_run_group_tests_name("notes", tests, NULL, NULL);
}
