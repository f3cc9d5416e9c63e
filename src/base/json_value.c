/*
 * Parses one JSON value into jansson's tree. jansson's own parser continues when it is out of
 * memory, with truncated strings; here every allocation is checked.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/locale.h"

enum { DEPTH_MAX = 512 };

typedef struct parser {
    const char *text;
    const char *at;
    const char *end;
    unsigned depth;
    char *scratch; /* the current string or number, null-terminated */
    size_t room;
    mgw_json_fault *fault;
} parser;

static mgw_status parse_value(parser *p, json_t **out);

static mgw_status fail(parser *p, const char *why)
{
    p->fault->line = 1;
    for (const char *c = p->text; c < p->at; c++)
        p->fault->line += *c == '\n';
    snprintf(p->fault->text, sizeof p->fault->text, "%s", why);
    return MGW_ERR_INPUT;
}

static mgw_status fail_memory(parser *p)
{
    mgw_status status = fail(p, "out of memory");
    return status ? MGW_ERR_NO_MEMORY : status;
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r' || *p->at == '\n'))
        p->at++;
}

static bool take(parser *p, char wanted)
{
    skip_space(p);
    if (p->at == p->end || *p->at != wanted)
        return false;
    p->at++;
    return true;
}

static mgw_status reserve(parser *p, size_t bytes)
{
    if (p->scratch && bytes <= p->room)
        return MGW_OK;
    char *larger = realloc(p->scratch, 2 * bytes);
    if (!larger)
        return fail_memory(p);
    p->scratch = larger;
    p->room = 2 * bytes;
    return MGW_OK;
}

/* ---- Strings ---- */

/* The length of the character that begins here; 0: invalid UTF-8. */
static size_t utf8_length(const char *text, const char *end)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t length = c[0] < 0x80   ? 1
                    : c[0] < 0xc2 ? 0
                    : c[0] < 0xe0 ? 2
                    : c[0] < 0xf0 ? 3
                    : c[0] < 0xf5 ? 4
                                  : 0;
    if (length > (size_t)(end - text))
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    bool outside = (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf4 && c[1] > 0x8f);
    return overlong || outside ? 0 : length;
}

static size_t put_utf8(uint32_t code, char *out)
{
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(first[length] | code);
    return length;
}

/* Four hexadecimal digits; -1: invalid. */
static int32_t take_hex(parser *p)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF";
        const char *found = p->at < p->end && *p->at ? strchr(digits, *p->at) : NULL;
        if (!found)
            return -1;
        code = code * 16 + (int32_t)((found - digits) % 16);
    }
    return code;
}

/* After "\u": one character, which may be a surrogate pair. */
static mgw_status take_unicode(parser *p, size_t *used)
{
    int32_t code = take_hex(p);
    if (code >= 0xd800 && code < 0xdc00) {
        bool second = p->end - p->at >= 2 && p->at[0] == '\\' && p->at[1] == 'u';
        p->at += second ? 2 : 0;
        int32_t low = second ? take_hex(p) : -1;
        code =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
    }
    if (code <= 0 || (code >= 0xdc00 && code < 0xe000))
        return fail(
            p,
            "invalid escape: \\u is followed by the character zero or by what is not a character");
    *used += put_utf8((uint32_t)code, p->scratch + *used);
    return MGW_OK;
}

static mgw_status take_escape(parser *p, size_t *used)
{
    static const char known[] = "\"\\/bfnrt";
    static const char meant[] = "\"\\/\b\f\n\r\t";
    const char *found = p->at < p->end && *p->at ? strchr(known, *p->at) : NULL;
    if (found) {
        p->scratch[(*used)++] = meant[found - known];
        p->at++;
        return MGW_OK;
    }
    if (p->at == p->end || *p->at != 'u')
        return fail(p, "invalid escape in a string");
    p->at++;
    return take_unicode(p, used);
}

/* After the opening quote; the result is in `scratch`. */
static mgw_status take_string(parser *p, size_t *length)
{
    const char *close = p->at;
    while (close < p->end && *close != '"')
        close += *close == '\\' && p->end - close > 1 ? 2 : 1;
    if (close >= p->end)
        return fail(p, "a string that does not end");
    size_t used = 0;
    mgw_status status = reserve(p, (size_t)(close - p->at) + 1); /* escapes only shrink */
    while (!status && p->at < close) {
        size_t bytes = utf8_length(p->at, close);
        if (bytes == 0) {
            status = fail(p, "bytes that are not UTF-8");
        } else if ((unsigned char)*p->at < 0x20) {
            status = fail(p, "a control character in a string");
        } else if (*p->at == '\\') {
            p->at++;
            status = take_escape(p, &used);
        } else {
            memcpy(p->scratch + used, p->at, bytes);
            used += bytes;
            p->at += bytes;
        }
    }
    if (status)
        return status;
    p->scratch[used] = '\0';
    p->at = close + 1;
    *length = used;
    return MGW_OK;
}

/* ---- Numbers and words ---- */

static size_t count_digits(const parser *p)
{
    size_t count = 0;
    while (p->at + count < p->end && p->at[count] >= '0' && p->at[count] <= '9')
        count++;
    return count;
}

static bool is_next(const parser *p, const char *any)
{
    return p->at < p->end && *p->at && strchr(any, *p->at);
}

/* Skips a number. False: there is none. */
static bool skip_number(parser *p, bool *whole)
{
    p->at += is_next(p, "-");
    size_t digits = count_digits(p);
    if (!digits || (*p->at == '0' && digits > 1))
        return false;
    p->at += digits;
    *whole = !is_next(p, ".eE");
    if (is_next(p, ".")) {
        p->at++;
        digits = count_digits(p);
        p->at += digits;
    }
    if (digits && is_next(p, "eE")) {
        p->at++;
        p->at += is_next(p, "+-");
        digits = count_digits(p);
        p->at += digits;
    }
    return digits > 0;
}

static mgw_status parse_number(parser *p, json_t **out)
{
    const char *begin = p->at;
    bool whole = false;
    if (!skip_number(p, &whole))
        return fail(p, "invalid token: no number, string, word or bracket of JSON");
    size_t length = (size_t)(p->at - begin);
    mgw_status status = reserve(p, length + 1);
    if (status)
        return status;
    memcpy(p->scratch, begin, length);
    p->scratch[length] = '\0';
    errno = 0;
    if (whole) {
        long long value = strtoll(p->scratch, NULL, 10);
        if (errno)
            return fail(p, "too big integer");
        *out = json_integer(value);
    } else {
        double value = strtod_l(p->scratch, NULL, mgw_c_locale());
        if (!isfinite(value))
            return fail(p, "too big real number");
        *out = json_real(value);
    }
    return *out ? MGW_OK : fail_memory(p);
}

static mgw_status parse_word(parser *p, json_t **out)
{
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(p->end - p->at) < length || memcmp(p->at, words[i], length) != 0)
            continue;
        p->at += length;
        *out = i == 0 ? json_null() : json_boolean(i == 1);
        return MGW_OK;
    }
    return parse_number(p, out);
}

/* ---- Arrays and objects ---- */

static mgw_status parse_array(parser *p, json_t *array)
{
    if (take(p, ']'))
        return MGW_OK;
    for (;;) {
        json_t *value = NULL;
        mgw_status status = parse_value(p, &value);
        if (!status && json_array_append_new(array, value))
            status = fail_memory(p);
        if (status)
            return status;
        if (take(p, ']'))
            return MGW_OK;
        if (!take(p, ','))
            return fail(p, "',' or ']' expected");
    }
}

static mgw_status parse_member(parser *p, json_t *object)
{
    size_t length = 0;
    if (!take(p, '"'))
        return fail(p, "a member name in quotes expected");
    mgw_status status = take_string(p, &length);
    if (!status && json_object_get(object, p->scratch))
        status = fail(p, "duplicate object key");
    char *key = status ? NULL : strdup(p->scratch);
    if (!status && !key)
        status = fail_memory(p);
    if (!status && !take(p, ':'))
        status = fail(p, "':' expected");
    json_t *value = NULL;
    if (!status)
        status = parse_value(p, &value);
    if (!status && json_object_set_new_nocheck(object, key, value))
        status = fail_memory(p);
    free(key);
    return status;
}

static mgw_status parse_object(parser *p, json_t *object)
{
    if (take(p, '}'))
        return MGW_OK;
    for (;;) {
        mgw_status status = parse_member(p, object);
        if (status)
            return status;
        if (take(p, '}'))
            return MGW_OK;
        if (!take(p, ','))
            return fail(p, "',' or '}' expected");
    }
}

static mgw_status parse_value(parser *p, json_t **out)
{
    size_t length = 0;
    *out = NULL;
    skip_space(p);
    if (p->at == p->end)
        return fail(p, "the text ends in the middle of a JSON value");
    if (take(p, '"')) {
        mgw_status status = take_string(p, &length);
        if (!status && !(*out = json_stringn_nocheck(p->scratch, length)))
            status = fail_memory(p);
        return status;
    }
    bool array = *p->at == '[';
    if (!array && *p->at != '{')
        return parse_word(p, out);
    p->at++;
    if (++p->depth > DEPTH_MAX)
        return fail(p, "too many brackets inside of each other");
    json_t *made = array ? json_array() : json_object();
    mgw_status status = !made   ? fail_memory(p)
                        : array ? parse_array(p, made)
                                : parse_object(p, made);
    p->depth--;
    if (status)
        json_decref(made);
    else
        *out = made;
    return status;
}

mgw_status mgw_json_parse(const char *text, size_t size, size_t *used, json_t **out,
                          mgw_json_fault *fault)
{
    parser p = {.text = text, .at = text, .end = text + size, .fault = fault};
    mgw_status status = parse_value(&p, out);
    if (!status && !used) {
        skip_space(&p);
        if (p.at < p.end)
            status = fail(&p, "more text after the end of the JSON value");
    }
    if (status) {
        json_decref(*out);
        *out = NULL;
    }
    if (used)
        *used = (size_t)(p.at - text);
    free(p.scratch);
    return status;
}
