/* A growing text buffer: appending, formatting, JSON values. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/text.h>

#include "base/locale.h"
#include "base/status.h"
#include "base/utf8.h"

void mgw_text_init(mgw_text *text)
{
    *text = (mgw_text){0};
}

void mgw_text_fini(mgw_text *text)
{
    free(text->data);
    *text = (mgw_text){0};
}

/* Makes room for `more` bytes and the terminator. */
static bool reserve(mgw_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (more < text->capacity - text->size)
        return true;
    size_t wanted = text->size + more + 1;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity < wanted)
        capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void mgw_text_append(mgw_text *text, const char *bytes, size_t size)
{
    if (!reserve(text, size))
        return;
    if (size)
        memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void mgw_text_printf(mgw_text *text, const char *format, ...)
{
    locale_t before = uselocale(mgw_c_locale());
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    size_t room = text->capacity - text->size;
    int size = vsnprintf(room ? text->data + text->size : NULL, room, format, arguments);
    va_end(arguments);
    if (size < 0)
        text->failed = true;
    else if ((size_t)size >= room && reserve(text, (size_t)size))
        vsnprintf(text->data + text->size, (size_t)size + 1, format, again);
    va_end(again);
    if (!text->failed)
        text->size += (size_t)size;
    uselocale(before);
}

void mgw_text_plain(mgw_text *text, const char *string)
{
    size_t before = text->size;
    mgw_text_append(text, string, strlen(string));
    if (!text->failed)
        mgw_utf8_clean(text->data + before);
}

void mgw_text_json_string(mgw_text *text, const char *string)
{
    static const char letters[] = "\b\f\n\r\t\"\\";
    mgw_text_append(text, "\"", 1);
    while (*string) {
        size_t length = mgw_utf8_length(string);
        const char *escaped = strchr(letters, *string);
        if (escaped)
            mgw_text_printf(text, "\\%c", "bfnrt\"\\"[escaped - letters]);
        else if ((unsigned char)*string < 0x20)
            mgw_text_printf(text, "\\u%04X", (unsigned)*string);
        else
            mgw_text_append(text, length ? string : "?", length ? length : 1);
        string += length ? length : 1;
    }
    mgw_text_append(text, "\"", 1);
}

void mgw_text_json_number(mgw_text *text, double value)
{
    char buffer[64];
    locale_t before = uselocale(mgw_c_locale());
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    uselocale(before);
    mgw_text_append(text, buffer, strlen(buffer));
}

mgw_status mgw_text_status(const mgw_text *text, mgw_error *error)
{
    return text->failed ? mgw_fail_memory(error, "writing text") : MGW_OK;
}
