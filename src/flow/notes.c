/*
 * Collects ready gradients by message; and the hook that Python calls for each gradient.
 */
#include <mgwfbp/notes.h>

#include <string.h>

#include "base/clock.h"

mgw_note mgw_notes_take(mgw_notes *notes, unsigned id)
{
    if (!notes->on || notes->seen[id] != MGW_UNSEEN || notes->message[id] == MGW_ALONE)
        return MGW_NOTE_OTHER;
    notes->seen[id] = MGW_NOTED;
    notes->at_s[id] = mgw_now_s();
    return --notes->left[notes->message[id]] ? MGW_NOTE_TAKEN : MGW_NOTE_LAST;
}

static mgw_python lent;

void mgw_hook_lend(const mgw_python *python)
{
    lent = *python;
}

/* Whether the gradient was computed on the stream of the notes. *failed: Python has raised an
 * exception. */
static bool is_here(const mgw_notes *notes, bool *failed)
{
    if (!notes->current)
        return true;
    void *stream = lent.call(notes->current, NULL);
    *failed = !stream;
    if (!stream)
        return false;
    bool same = lent.pointer_of(stream) == notes->stream;
    lent.release(stream);
    return same;
}

static bool mark(const mgw_notes *notes, const mgw_hook_of *hook)
{
    if (!notes->sampled || hook->id % notes->sampled != notes->share)
        return true;
    void *result = lent.call(notes->mark, hook->arguments);
    if (result)
        lent.release(result);
    return result;
}

void *mgw_hook(void *self, void *arguments)
{
    (void)arguments;
    mgw_hook_of *hook = lent.pointer_of(self);
    mgw_notes *notes = hook->notes;
    bool failed = false;
    if (notes->on && is_here(notes, &failed) && !failed) {
        mgw_note note = mgw_notes_take(notes, hook->id);
        if (note != MGW_NOTE_OTHER && !mark(notes, hook))
            return NULL;
        if (note == MGW_NOTE_TAKEN) {
            lent.retain(lent.none);
            return lent.none;
        }
    }
    return failed ? NULL : lent.call(hook->listener, hook->arguments);
}

void mgw_copy_all(size_t count, void *const *to, const void *const *from, const size_t *bytes)
{
    for (size_t i = 0; i < count; i++)
        if (from[i])
            memcpy(to[i], from[i], bytes[i]);
}
