/* The page as one HTML file: its own style, script, data and planner, and nothing external. */
#include <string.h>

#include <mgwfbp/data.h>
#include <mgwfbp/report.h>

#include "web/hashes.h"

/* Files of this folder, embedded; the planner is empty if it was not built. */
#pragma GCC visibility push(hidden)
extern const char mgw_web_page[], mgw_web_page_end[];
extern const char mgw_web_style[], mgw_web_style_end[];
extern const char mgw_web_script[], mgw_web_script_end[];
extern const char mgw_web_planner[], mgw_web_planner_end[];
#pragma GCC visibility pop

bool mgw_page_plans(void)
{
    return mgw_web_planner_end - mgw_web_planner > 0;
}

typedef struct parts {
    const mgw_page *page;
    bool served;
    mgw_text *text;
} parts;

static void put_style(const parts *p)
{
    mgw_text_append(p->text, mgw_web_style, (size_t)(mgw_web_style_end - mgw_web_style));
}

static void put_script(const parts *p)
{
    mgw_text_append(p->text, mgw_web_script, (size_t)(mgw_web_script_end - mgw_web_script));
}

/* Content security policy: only our own script and style run, identified by their hashes; nothing
 * else is loaded. */
static void put_rules(const parts *p)
{
    mgw_text_printf(
        p->text,
        "default-src 'none'; script-src '%s' 'wasm-unsafe-eval'; style-src '%s'; img-src data:; "
        "base-uri 'none'; form-action 'none'%s",
        MGW_WEB_SCRIPT_HASH, MGW_WEB_STYLE_HASH, p->served ? "; connect-src 'self'" : "");
}

/* JSON inside HTML: '<' occurs in strings only, and must not begin a tag there. */
static void put_json(mgw_text *out, const mgw_text *json)
{
    const char *from = json->data;
    const char *end = from + json->size;
    while (from < end) {
        const char *less = memchr(from, '<', (size_t)(end - from));
        mgw_text_append(out, from, (size_t)((less ? less : end) - from));
        if (less)
            mgw_text_append(out, "\\u003c", 6);
        from = less ? less + 1 : end;
    }
}

static void put_data(const parts *p)
{
    mgw_text json;
    mgw_text_init(&json);
    mgw_page_write_data(p->page, &json);
    if (json.failed)
        p->text->failed = true;
    else
        put_json(p->text, &json);
    mgw_text_fini(&json);
}

static void put_planner(const parts *p)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)mgw_web_planner;
    size_t size = (size_t)(mgw_web_planner_end - mgw_web_planner);
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        unsigned bits = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                        (left > 2 ? bytes[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                        left > 1 ? digits[bits >> 6 & 63] : '=',
                        left > 2 ? digits[bits & 63] : '='};
        mgw_text_append(p->text, four, 4);
    }
}

/* A served page offers the built-in data; a saved one could not fetch it. */
static void put_served(const parts *p)
{
    if (!p->served) {
        mgw_text_printf(p->text, "null");
        return;
    }
    size_t count = 0;
    const mgw_builtin *builtins = mgw_builtin_list(&count);
    mgw_text_printf(p->text, "[");
    for (size_t i = 0; i < count; i++)
        mgw_text_printf(p->text, "%s\"%s\"", i ? "," : "", builtins[i].name);
    mgw_text_printf(p->text, "]");
}

static const struct {
    const char *mark;
    void (*put)(const parts *p);
} places[] = {{"{{rules}}", put_rules}, {"{{style}}", put_style},     {"{{script}}", put_script},
              {"{{data}}", put_data},   {"{{planner}}", put_planner}, {"{{served}}", put_served}};

void mgw_page_write(const mgw_page *page, bool served, mgw_text *text)
{
    parts p = {page, served, text};
    const char *from = mgw_web_page;
    while (from < mgw_web_page_end) {
        const char *mark = memchr(from, '{', (size_t)(mgw_web_page_end - from));
        const char *stop = mark ? mark : mgw_web_page_end;
        mgw_text_append(text, from, (size_t)(stop - from));
        from = stop;
        size_t length = 0;
        for (size_t i = 0; mark && !length && i < sizeof places / sizeof *places; i++)
            if (strlen(places[i].mark) <= (size_t)(mgw_web_page_end - mark) &&
                !strncmp(mark, places[i].mark, strlen(places[i].mark))) {
                places[i].put(&p);
                length = strlen(places[i].mark);
            }
        if (mark && !length)
            mgw_text_append(text, "{", 1);
        from += mark ? (length ? length : 1) : 0;
    }
}
