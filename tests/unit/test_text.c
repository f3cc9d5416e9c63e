/* Text, units, tables, and atomic file writes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

static void units_for_people(void **unused)
{
    (void)unused;
    char out[MGW_UNITS_MAX];
    assert_string_equal(mgw_format_bytes(0, out), "0 B");
    assert_string_equal(mgw_format_bytes(1023, out), "1023 B");
    assert_string_equal(mgw_format_bytes(1024, out), "1 KiB");
    assert_string_equal(mgw_format_bytes(1536, out), "1.50 KiB");
    assert_string_equal(mgw_format_bytes(102400001, out), "97.7 MiB");
    assert_string_equal(mgw_format_bytes(UINT64_MAX, out), "16 EiB");
    assert_string_equal(mgw_format_seconds(0, out), "0 s");
    assert_string_equal(mgw_format_seconds(1.5e-9, out), "1.50 ns");
    assert_string_equal(mgw_format_seconds(0.00099949, out), "999 us");
    assert_string_equal(mgw_format_seconds(0.0009996, out), "1.00 ms");
    assert_string_equal(mgw_format_seconds(0.0178529, out), "17.9 ms");
    assert_string_equal(mgw_format_seconds(123.4, out), "123 s");
    assert_string_equal(mgw_format_seconds(1e300, out), "1.00e+300 s");
    assert_string_equal(mgw_format_seconds(-1, out), "?");
    assert_string_equal(mgw_format_seconds(INFINITY, out), "?");
}

static void sizes_are_parsed(void **unused)
{
    (void)unused;
    uint64_t bytes = 0;
    assert_int_equal(mgw_parse_bytes("25MiB", &bytes, NULL), MGW_OK);
    assert_int_equal(bytes, 25 << 20);
    assert_int_equal(mgw_parse_bytes("0", &bytes, NULL), MGW_OK);
    assert_int_equal(bytes, 0);
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"25MB", 25 << 20}, {"25M", 25 << 20},    {"64kB", 64 << 10},
                {"64KB", 64 << 10}, {"2.5MB", 5 << 19},   {"0.5K", 512},
                {"7B", 7},          {"1048576", 1 << 20}, {"1.25GiB", 5u << 28}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(mgw_parse_bytes(good[i].text, &bytes, NULL), MGW_OK);
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"1.5e3M",      "1.0e400G", "",    " 1", "-1",
                                      "1.5",         "1.5B",     "1.M", "1m", "1 MB",
                                      "9999999999G", "M",        "1e3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mgw_parse_bytes(bad[i], &bytes, NULL), MGW_ERR_ARGUMENT);
}

static void json_values(void **unused)
{
    (void)unused;
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_json_string(&text, "a\"\\\n\x01\xc3\xa9<");
    assert_string_equal(text.data, "\"a\\\"\\\\\\n\\u0001\xc3\xa9<\"");
    mgw_text_fini(&text);
    mgw_text_json_string(&text, "not utf-8: \xff");
    assert_string_equal(text.data, "\"not utf-8: ?\"");
    mgw_text_fini(&text);
    /* Longer than needed, half of a pair, beyond the last: all of them not UTF-8. */
    mgw_text_json_string(&text,
                         "\b\f\r\t\x7f \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xf0\x9f\x98\x80");
    assert_string_equal(text.data, "\"\\b\\f\\r\\t\x7f ?? ??? ???? \xf0\x9f\x98\x80\"");
    mgw_text_fini(&text);
    uint64_t state = 21;
    for (int i = 0; i < 10000; i++) {
        double value = ldexp(random_unit(&state), (int)random_below(&state, 200) - 100);
        mgw_text_json_number(&text, value);
        assert_true(strtod(text.data, NULL) == value);
        mgw_text_fini(&text);
    }
    mgw_text_json_number(&text, 0.1);
    assert_string_equal(text.data, "0.1");
    mgw_text_fini(&text);
}

/* German writes "0,5"; files and tables must not. LOCPATH points to a locale made for the test. */
static void any_locale(void **unused)
{
    (void)unused;
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        print_message("no de_DE.UTF-8 here\n");
        skip();
    }
    char plain[32];
    snprintf(plain, sizeof plain, "%.1f", 0.5);
    assert_string_equal(plain, "0,5");
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_printf(&text, "%.1f ", 0.5);
    mgw_text_json_number(&text, 0.25);
    mgw_table *table = mgw_table_create("<h");
    mgw_table_cell(table, "%.1f", 0.75);
    mgw_table_write(table, &text);
    mgw_table_destroy(table);
    assert_string_equal(text.data, "0.5 0.25h\n0.8\n");
    mgw_text_fini(&text);
    char out[MGW_UNITS_MAX];
    assert_string_equal(mgw_format_seconds(0.0178529, out), "17.9 ms");
    mgw_trace *trace = NULL;
    assert_int_equal(mgw_trace_load("resnet50-b32-fp32-h200", &trace, NULL), MGW_OK);
    assert_true(trace->forward_s == 6077888e-9);
    mgw_trace_destroy(trace);
    mgw_import about;
    mgw_cluster *cluster = NULL;
    assert_int_equal(
        mgw_cluster_import_file(FIXTURES "/osu_allreduce.txt", 2, &about, &cluster, NULL), MGW_OK);
    mgw_cluster_destroy(cluster);
    setlocale(LC_ALL, "C");
}

/* Each width from one on: no line is wider, as far as words and numbers allow, and nothing but the
 * middle of texts is lost. */
static void tables_fit(void **unused)
{
    (void)unused;
    static const char *const cells[] = {"optimal",           "12", "1.25x", "conv1.weight",
                                        "threshold:1048576", "3",  "10.5x", "a-rather-long-name"};
    for (size_t width = 1; width < 80; width++) {
        mgw_text text;
        mgw_text_init(&text);
        mgw_table *table = mgw_table_create("<policy|messages|slower than the best|<last tensor");
        for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
            mgw_table_cell(table, "%s", cells[i]);
        mgw_table_fit(table, width, false);
        mgw_table_write(table, &text);
        mgw_table_destroy(table);
        assert_non_null(text.data);
        for (const char *line = text.data; *line;) {
            size_t shown = 0;
            for (; *line && *line != '\n'; line++)
                shown += ((unsigned char)*line & 0xc0) != 0x80;
            line += *line == '\n';
            assert_true(shown <= (width < 31 ? 31 : width)); /* a name, and a text beside */
        }
        static const char *const kept[] = {"optimal", "12", "1.25x", "3", "10.5x", "slower"};
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            assert_non_null(strstr(text.data, kept[i]));
        mgw_text_fini(&text);
    }
    mgw_text text;
    mgw_text_init(&text);
    mgw_table *table = mgw_table_create("<policy|slower than the best");
    mgw_table_cell(table, "wfbp");
    mgw_table_cell(table, "1.25x");
    mgw_table_fit(table, 16, true);
    mgw_table_write(table, &text);
    assert_string_equal(text.data, "\033[1m"
                                   "          slower\n"
                                   "        than the\n"
                                   "policy      best\n"
                                   "\033[0mwfbp       1.25x\n");
    mgw_table_destroy(table);
    mgw_text_fini(&text);
    table =
        mgw_table_create("<policy|\u00b5\u00b5\u00b5\u00b5 \u00b5\u00b5\u00b5"); /* 2 bytes each */
    mgw_table_cell(table, "wfbp");
    mgw_table_cell(table, "1.25x");
    mgw_table_fit(table, 13, false);
    mgw_table_write(table, &text);
    assert_string_equal(text.data, "         \u00b5\u00b5\u00b5\u00b5\n"
                                   "policy    \u00b5\u00b5\u00b5\n"
                                   "wfbp    1.25x\n");
    mgw_table_destroy(table);
    mgw_text_fini(&text);
    mgw_table_fit(NULL, 10, true);
}

static void tables_are_aligned(void **unused)
{
    (void)unused;
    mgw_text text;
    mgw_text_init(&text);
    mgw_table *table = mgw_table_create("<name|n|<note");
    static const char *const cells[] = {"a", "1", "", "long\nname", "22", "x", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        mgw_table_cell(table, "%s", cells[i]);
    mgw_table_write(table, &text);
    assert_string_equal(text.data, "name        n  note\n"
                                   "a           1\n"
                                   "long?name  22  x\n"
                                   "\xc3\xa9\n");
    mgw_table_destroy(table);
    mgw_text_fini(&text);
    mgw_table_write(NULL, &text);
    assert_true(text.failed);
    assert_int_equal(mgw_text_status(&text, NULL), MGW_ERR_NO_MEMORY);
}

/* ---- Files ---- */

static char folder[] = "/tmp/mgwfbp-text.XXXXXX";

static int make_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *path_in_folder(const char *name)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static size_t files_in_folder(void)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

static mgw_status save(const char *content, const char *path, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_append(&text, content, strlen(content));
    mgw_status status = mgw_text_save(&text, path, error);
    mgw_text_fini(&text);
    return status;
}

static void check_file(const char *path, const char *content)
{
    char buffer[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(buffer, 1, sizeof buffer - 1, file);
    fclose(file);
    buffer[size] = '\0';
    assert_string_equal(buffer, content);
}

static void files_are_replaced_whole(void **unused)
{
    (void)unused;
    char path[100];
    strcpy(path, path_in_folder("a"));
    assert_int_equal(save("one", path, NULL), MGW_OK);
    check_file(path, "one");
    struct stat info;
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(save("two", path, NULL), MGW_OK);
    check_file(path, "two");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    /* A link stays a link. */
    char link[100];
    strcpy(link, path_in_folder("link"));
    assert_int_equal(symlink("a", link), 0);
    assert_int_equal(save("three", link, NULL), MGW_OK);
    check_file(path, "three");
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(files_in_folder(), 2);
}

static void devices_are_written_to(void **unused)
{
    (void)unused;
    mgw_error error = {0};
    struct stat info;
    assert_int_equal(save("x", "/dev/null", &error), MGW_OK);
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    assert_int_equal(save("x", "/dev/full", &error), MGW_ERR_IO);
    assert_contains(error.message, "/dev/full: cannot write: No space left");
    assert_int_equal(save("x", "/no/such/folder/x", &error), MGW_ERR_NOT_FOUND);
    assert_contains(error.message, "/no/such/folder/x: cannot create");
}

/* A file-size limit fails in the middle of writing, as a full disk does. */
static void a_failed_write_leaves_nothing(void **unused)
{
    (void)unused;
    char path[100];
    strcpy(path, path_in_folder("b"));
    assert_int_equal(save("before", path, NULL), MGW_OK);
    size_t files = files_in_folder();
    char *large = malloc(100001);
    memset(large, 'x', 100000);
    large[100000] = '\0';
    struct rlimit old;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mgw_error error = {0};
    mgw_status replaced = save(large, path, &error);
    mgw_status created = save(large, path_in_folder("c"), NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    free(large);
    assert_int_equal(replaced, MGW_ERR_IO);
    assert_int_equal(created, MGW_ERR_IO);
    assert_contains(error.message, path);
    check_file(path, "before");
    assert_int_equal(files_in_folder(), files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_for_people),
        cmocka_unit_test(sizes_are_parsed),
        cmocka_unit_test(json_values),
        cmocka_unit_test(any_locale),
        cmocka_unit_test(tables_are_aligned),
        cmocka_unit_test(tables_fit),
        cmocka_unit_test(files_are_replaced_whole),
        cmocka_unit_test(devices_are_written_to),
        cmocka_unit_test(a_failed_write_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
