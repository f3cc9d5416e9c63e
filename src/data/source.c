/* The source of a file's text: a path, or the name of built-in data. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"

mgw_status mgw_source_open(const char *path_or_name, mgw_source *out, mgw_error *error)
{
    *out = (mgw_source){0};
    struct stat about;
    mgw_status status = mgw_file_read(path_or_name, &out->owned, &out->size, error);
    if (!status && out->size >= 3 && !memcmp(out->owned, "\xef\xbb\xbf", 3)) {
        out->size -= 3; /* a byte order mark, written by some editors */
        memmove(out->owned, out->owned + 3, out->size + 1);
    }
    out->text = out->owned;
    bool is_folder = status == MGW_ERR_IO && !stat(path_or_name, &about) && S_ISDIR(about.st_mode);
    if (status != MGW_ERR_NOT_FOUND && !is_folder)
        return status;
    size_t count = 0;
    const mgw_builtin *builtins = mgw_builtin_list(&count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(builtins[i].name, path_or_name)) {
            *out = (mgw_source){.text = builtins[i].text, .size = builtins[i].size};
            return MGW_OK;
        }
    if (is_folder)
        return status;
    mgw_near near = mgw_near_to(path_or_name);
    mgw_source_offer(MGW_DATA_TRACE, &near);
    mgw_source_offer(MGW_DATA_CLUSTER, &near);
    return mgw_source_unknown(&near, error);
}

void mgw_source_offer(mgw_data_kind kind, mgw_near *near)
{
    size_t count = 0;
    const mgw_builtin *builtins = mgw_builtin_list(&count);
    for (size_t i = 0; i < count; i++)
        if (builtins[i].kind == kind)
            mgw_near_offer(near, builtins[i].name);
}

mgw_status mgw_source_unknown(const mgw_near *near, mgw_error *error)
{
    char hint[MGW_NEAR_HINT];
    mgw_near_hint(near, hint);
    return mgw_fail(error, MGW_ERR_NOT_FOUND,
                    "%.200s: no such file, and no built-in of that name%s", near->wanted,
                    *hint ? hint : " ('mgwfbp list' shows them)");
}

void mgw_source_close(mgw_source *source)
{
    free(source->owned);
    *source = (mgw_source){0};
}

static mgw_status check_syntax(const char *origin, const mgw_text *text, mgw_error *error)
{
    mgw_json_document document;
    mgw_status status =
        mgw_json_read(origin, text->data, text->size, NULL, NULL, NULL, NULL, &document, error);
    mgw_json_document_fini(&document);
    return status;
}

static mgw_status find_kind(const char *origin, const mgw_text *text, mgw_data_kind *out,
                            mgw_error *error)
{
    static const struct {
        const char *format;
        mgw_data_kind kind;
    } formats[] = {{"mgwfbp-trace-1", MGW_DATA_TRACE},
                   {"mgwfbp-cluster-1", MGW_DATA_CLUSTER},
                   {"mgwfbp-plan-1", MGW_DATA_PLAN},
                   {"mgwfbp-plan-2", MGW_DATA_PLAN}};
    char *format = mgw_json_format(text->data, text->size);
    mgw_status status = format ? MGW_OK : check_syntax(origin, text, error);
    if (status)
        return status;
    status = MGW_ERR_INPUT;
    for (size_t i = 0; format && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(format, formats[i].format)) {
            *out = formats[i].kind;
            status = MGW_OK;
        }
    if (status)
        mgw_error_record(error, status,
                         "%s: format: %s%.60s; choose one of mgwfbp-trace-1, mgwfbp-cluster-1, "
                         "mgwfbp-plan-1, mgwfbp-plan-2",
                         origin, format ? "unknown format " : "missing", format ? format : "");
    free(format);
    return status;
}

mgw_status mgw_data_read(const char *path_or_name, mgw_data_kind *kind, mgw_text *text,
                         mgw_error *error)
{
    mgw_source source;
    mgw_text_init(text);
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (status)
        return status;
    if (source.owned) { /* moved, not copied: it may be large */
        *text = (mgw_text){source.owned, source.size, source.size + 1, false};
        source.owned = NULL;
    } else {
        mgw_text_append(text, source.text, source.size);
    }
    mgw_source_close(&source);
    status = mgw_text_status(text, error);
    return status ? status : find_kind(path_or_name, text, kind, error);
}
